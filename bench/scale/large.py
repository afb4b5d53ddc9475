"""Models that are larger than a machine: what each machine holds, and what crosses a cut.

Formulas for decoders of the Llama family (Touvron et al., 2023, with grouped queries), in bytes and
seconds, for weights and activations of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES = 2  # of a bfloat16


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def kv(self) -> int:
        """Elements of the keys of a token in one layer, and as many of its values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def layer(self) -> int:
        """Parameters of a layer: queries and the output, keys and values, three products of the
        feed-forward part, two norms."""
        h = self.hidden
        return 2 * h * h + 2 * h * self.kv + 3 * h * self.ffn + 2 * h

    @property
    def parameters(self) -> int:
        """All of them, the embedding and the last product among them."""
        return self.layers * self.layer + 2 * self.vocabulary * self.hidden + self.hidden


LLAMA_70B = Decoder(80, 8192, 28672, 64, 8, 128256)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Of each machine: bytes a second of its memory and of its network, seconds of a message."""

    memory: float = 400e9
    network: float = 25e9 / 8
    latency: float = 20e-6


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to run a decoder on several machines. `weights` and `cache` (for each token of
    context) are of the machine that holds most; `message_bytes` are what a machine sends for a
    token, in `messages` one after the other; `token` is the least time for one token of one
    sequence: weights are read once, and what is sent is waited for."""

    weights: int
    cache: int
    message_bytes: float
    messages: int
    token: float


def pipeline(d: Decoder, machines: int, h: Hardware) -> Cut:
    """Each machine has some of the layers: a token visits them one after the other. A cut is passed
    by the hidden state of a token; the last machine sends the token back, which is nothing."""
    layers = -(-d.layers // machines)
    ends = d.vocabulary * d.hidden * (2 if machines == 1 else 1)
    weights = (layers * d.layer + ends + d.hidden) * BYTES
    message = d.hidden * BYTES if machines > 1 else 0
    cuts = machines - 1
    time = d.parameters * BYTES / h.memory + cuts * (h.latency + message / h.network)
    return Cut(weights, layers * 2 * d.kv * BYTES, message, cuts, time)


def tensor(d: Decoder, machines: int, h: Hardware) -> Cut:
    """Each machine has some of the heads and of the feed-forward part of every layer. After both,
    the hidden state is summed over machines: two all-reduces a layer, by rings of 2 (N - 1) steps
    in which each machine sends an N-th."""
    n = machines
    steps = 2 * d.layers * 2 * (n - 1)
    message = steps * d.hidden * BYTES / n
    weights = -(-d.parameters // n) * BYTES
    heads = -(-d.kv_heads // n)  # where there are more machines, several hold the same
    cache = d.layers * 2 * d.hidden // d.heads * heads * BYTES
    time = weights / h.memory + steps * h.latency + message / h.network
    return Cut(weights, cache, message, steps, time)
