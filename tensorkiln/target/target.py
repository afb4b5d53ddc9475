"""`Target`: one validated description of what to compile for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tensorkiln.base.element_types import ELEMENT_TYPES
from tensorkiln.base.errors import UserError
from tensorkiln.target.fields import Fields, canonical_text
from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.kinds import KINDS, Kind
from tensorkiln.target.memory import MemoryPool
from tensorkiln.target.options import Value, unknown_key
from tensorkiln.target.options import to_json as option_json
from tensorkiln.target.parse import load_tags, parse


# Not slotted: with slots, Python 3.11 raises a TypeError about super() for `target.mcpu = ...`
# instead of FrozenInstanceError.
@dataclass(frozen=True, init=False, repr=False)
class Target:
    """What to compile for. Frozen, hashable, equal by content.

    Made from JSON text, a dict, a tag (`"raspberrypi/4b"`), the name of a kind (`"llvm"` is the
    baseline of x86-64), of a product (`"rpi4"`), a processor (`"skylake"`) or a feature of x86-64
    (`"avx2"`: the least level that has it), or `"native"` (this machine, with the detected
    processor, features and cache sizes written into the fields). `host` is the target of the host
    program, for kinds that run on a device.

    `str(t)` is the canonical JSON, and `Target(str(t)) == t`. Only `"native"` depends on the
    machine. Raises UserError for an unknown name or field and for fields that contradict each
    other, e.g. code `unknown-cpu`, `unknown-key`, `ambiguous-name`.
    """

    kind: str
    tag: str
    base_tag: str
    keys: tuple[str, ...]
    libs: tuple[str, ...]
    target_key: str
    operators: tuple[str, ...]
    host: Target | None
    devices: tuple[Target, ...]
    _fields: Fields
    features: frozenset[str] = field(compare=False, repr=False)

    def __init__(
        self,
        spec: str | Mapping[str, object] | Target = "llvm",
        host: str | Mapping[str, object] | Target | None = None,
    ):
        fields = spec._fields if isinstance(spec, Target) else parse(spec)
        if host is not None:
            target, host_target = Target._of(fields), Target(host)
            if target.host not in (None, host_target):
                raise UserError(
                    f"received two hosts, {target.host} and {host_target}",
                    code="two-hosts",
                    where="target.host",
                    hint="give it once",
                )
            fields = target.replace(host=host_target)._fields
        self._set(fields)

    @classmethod
    def _of(cls, fields: Fields) -> Target:
        """Make a target from fields that were already checked."""
        target = cls.__new__(cls)
        target._set(fields)
        return target

    def _set(self, fields: Fields) -> None:
        values: dict[str, object] = {
            "kind": fields.kind,
            "tag": fields.tag,
            "base_tag": fields.base_tag,
            "keys": fields.keys,
            "libs": fields.libs,
            "target_key": fields.target_key,
            "operators": fields.operators,
            "host": None if fields.host is None else Target._of(fields.host),
            "devices": tuple(Target._of(device) for device in fields.devices),
            "_fields": fields,
            "features": _features(dict(fields.attrs)),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def native(cls) -> Target:
        """Return the target of this machine's CPU, with detected features and cache sizes."""
        return cls("native")

    @staticmethod
    def load_tags(path: str | Path) -> tuple[str, ...]:
        """Register the tags of a TOML file for this process, all or none. Return their names with
        versions, `vendor/name:version`. Raises UserError, e.g. code `bad-tag` or `tag-hash`."""
        return load_tags(path)

    def replace(self, **fields: object) -> Target:
        """Return this target with other fields or options; None as a value resets an option to its
        default. If the target has a tag and its content changes, the tag becomes the `base_tag`.
        Raises UserError like the constructor."""
        content = self._fields.to_json(tags=False) | {"base_tag": self.base_tag}
        changed = parse({**content, **fields})
        if not self.tag or changed.content_hash() == self.content_hash:
            return self if self.tag else Target._of(changed)
        return Target({**changed.to_json(), "base_tag": self.tag})

    # -- text ------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, object]:
        """Return the canonical fields as JSON values, in canonical order."""
        return self._fields.to_json()

    @property
    def content_hash(self) -> str:
        """`sha256:...` of the canonical JSON without tags: a tag stands for the content with this
        hash."""
        return self._fields.content_hash()

    @property
    def attrs(self) -> dict[str, object]:
        """The options of the kind that have a value, as JSON values."""
        return {k: option_json(v) for k, v in self._fields.attrs}

    def __str__(self) -> str:
        return canonical_text(self.to_json())

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __reduce__(self) -> tuple[type[Target], tuple[str]]:
        return Target, (str(self),)

    # -- options ---------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Value | None:
        """Return the value of an option of the kind. If it is not given, return what the kind
        derives from the others (such as a limit of the GPU's `arch`), or None; of several
        processors, what it is for the least one, such as its caches. Raises UserError
        (code `unknown-key`) for a name that the kind does not have."""
        options = {option.name: option for option in self._kind.options}
        if name not in options:
            raise unknown_key(name, self.kind, options, (), f"Target[{name!r}]")
        attrs = dict(self._fields.attrs)
        if name not in attrs and self.levels:
            return self.levels[0][name]
        return attrs[name] if name in attrs else self._kind.known(attrs).get(name)

    @property
    def _kind(self) -> Kind:
        return KINDS[self.kind]

    def _text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str)
        return value

    def _number(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int)
        return value

    @property
    def mtriple(self) -> str:
        """The machine, as arch-vendor-os[-environment]. UserError for kinds without a CPU."""
        return self._text("mtriple")

    @property
    def mcpu(self) -> str:
        """The processor, in LLVM's spelling; of several levels the least one."""
        value = self["mcpu"]
        return str(value[0]) if isinstance(value, tuple) else self._text("mcpu")

    @property
    def levels(self) -> tuple[Target, ...]:
        """The targets of the processors that one library has kernels for, the least one first;
        empty if it is one processor. Each has all other options of this target."""
        value = dict(self._fields.attrs).get("mcpu")
        if not isinstance(value, tuple):
            return ()
        return tuple(self.replace(mcpu=cpu) for cpu in value)

    @property
    def mattr(self) -> tuple[str, ...]:
        """Features added to or taken from the processor's own, sorted."""
        value = self["mattr"]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, str))

    @property
    def l1d_bytes(self) -> int:
        """Size in bytes of one core's first-level data cache."""
        return self._number("l1d_bytes")

    @property
    def l2_bytes(self) -> int:
        """Size in bytes of the second-level cache: of one core, or of the whole GPU."""
        return self._number("l2_bytes")

    @property
    def memory(self) -> tuple[MemoryPool, ...]:
        """The pools of memory, fastest first; empty if the target states none."""
        value = dict(self._fields.attrs).get("memory", ())
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, MemoryPool))

    @property
    def winograd(self) -> int:
        """Largest output tile of Winograd convolutions: 2, 4, or 0 to use none. Default 4, but 0
        where weights are to be small."""
        value = self["winograd"]
        return value if isinstance(value, int) else 0 if self.optimize == "size" else 4

    @property
    def optimize(self) -> str:
        """What to prefer if speed and size conflict: `speed` or, on request for a CPU, `size`."""
        value = dict(self._fields.attrs).get("optimize")
        return value if isinstance(value, str) else "speed"

    @property
    def indices(self) -> str:
        """How kernels treat an index in data that is out of range: `check`, which ends the run with
        an error, or, on request for a CPU, `clamp`."""
        value = dict(self._fields.attrs).get("indices")
        return value if isinstance(value, str) else "check"

    @property
    def flushes_denormals(self) -> bool:
        """Whether runs treat numbers below the smallest normal one as 0: on request for a CPU."""
        return dict(self._fields.attrs).get("denormals") == "flush"

    @property
    def precision(self) -> str:
        """The type of the operands of products: float32 or, on request for a CPU, `bfloat16` or
        `float16`."""
        value = dict(self._fields.attrs).get("precision")
        return value if isinstance(value, str) else "float32"

    @property
    def has_narrow_operands(self) -> bool:
        """Whether the operands of products are rounded to fewer bits than float32 has."""
        return self.precision != "float32"

    # -- questions -------------------------------------------------------------------------------

    @property
    def arch(self) -> str:
        """The first part of a CPU's triple (`x86_64`), or the option `arch` of a GPU (`sm_75`), or
        `""` for kinds that have neither."""
        attrs = dict(self._fields.attrs)
        return str(attrs.get("mtriple", attrs.get("arch", ""))).split("-")[0]

    @property
    def _isa(self) -> Isa:
        if self.arch not in ISAS:
            raise UserError(
                f"kind {self.kind!r} has no processor features",
                code="wrong-kind",
                where="target",
                hint="kinds of CPUs have: llvm, llvmjit, c",
            )
        return ISAS[self.arch]

    def has(self, feature: str) -> bool:
        """Whether the CPU has `feature`, in LLVM's spelling (`avx2`). UserError for an unknown name
        (code `unknown-feature`), and for kinds without a CPU (`wrong-kind`)."""
        self._isa.check_feature(feature, "Target.has")
        return feature in self.features

    def has_type(self, dtype: str) -> bool:
        """Whether kernels may compute in `dtype` (`"float64"`): a kind may lack it, or an option
        says so. Floats of 16 bits can always be computed in float32."""
        if dtype in self._kind.lacks:
            return False
        option = f"supports_{dtype}"
        has_option = dtype == "float64" and any(o.name == option for o in self._kind.options)
        return not has_option or bool(self[option])

    @property
    def is_baseline(self) -> bool:
        """Whether the features are those of the architecture's baseline, which every CPU has."""
        return self.features == self._isa.cpu_features(self._isa.baseline_cpu)

    @property
    def required_features(self) -> tuple[str, ...]:
        """Features beyond the baseline that generated code may use, sorted."""
        return self.required(self.features)

    def required(self, features: Collection[str]) -> tuple[str, ...]:
        """Those of `features` that are beyond the baseline and that generated code may use, sorted.
        A library checks those of its kernels when it is opened."""
        base = self._isa.cpu_features(self._isa.baseline_cpu)
        return tuple(sorted(self._isa.generated(frozenset(features) - base)))

    def features_for(self, words: Collection[str]) -> frozenset[str]:
        """The features that a program with these types of values and scopes of buffers may use."""
        return self._isa.used(self.features, words)

    @property
    def llvm_cpu(self) -> str:
        """The processor whose scheduling model LLVM uses: `mcpu`, or `generic` if LLVM fails on its
        model. The features are given separately, by `llvm_features`."""
        return "generic" if self.mcpu in self._isa.without_model else self.mcpu

    @property
    def llvm_features(self) -> str:
        """Every feature spelled out for LLVM, e.g. `+avx,+avx2,-avx512f,...`."""
        return self.llvm_flags(self.features)

    def llvm_flags(self, features: Collection[str]) -> str:
        """As `llvm_features`, of which only `features` are there. Absent features are listed too,
        so that LLVM's table for the processor cannot add them."""
        names = sorted(self._isa.implied)
        flags = [f"{'+' if name in features else '-'}{name}" for name in names]
        flags += [flag for flag in self.mattr if flag[1:] in self._isa.tuning]
        return ",".join(flags)

    @property
    def has_threads(self) -> bool:
        """Whether programs may have threads: not without an operating system."""
        return self.mtriple.split("-")[2] != "none"

    @property
    def vector_bytes(self) -> int:
        """Size in bytes of the widest vector register that kernels should use; of a general-purpose
        register if the CPU has no vectors."""
        tuning = self.mattr if self._isa.tuning else ()
        return self._isa.vector_bytes(self.features, tuning)

    def vector_lanes(self, dtype: str) -> int:
        """Return how many elements of `dtype` (`"float32"`, `"int8"`, ...) fit one vector register,
        at least 1, and 1 if there are no vectors, or the kind is not a CPU's. ValueError for a
        dtype of unknown size."""
        bits = ELEMENT_TYPES[dtype].bits if dtype in ELEMENT_TYPES else 0
        if not bits:
            raise ValueError(f"no size known for dtype {dtype!r}")
        if self.arch not in ISAS or not self._isa.has_vectors(self.features):
            return 1
        return max(1, self.vector_bytes * 8 // bits)

    @property
    def num_vector_registers(self) -> int:
        """Number of architectural vector registers."""
        return self._isa.vector_registers(self.features)

    @property
    def overwrites_operands(self) -> bool:
        """Whether vector arithmetic overwrites its first operand (SSE without AVX), so that an
        operand that is needed later must be copied first."""
        return self._isa.overwrites_operands(self.features)

    @property
    def multiplies_by_lane(self) -> bool:
        """Whether a multiply-add can broadcast one lane of a register to all lanes of the other
        operand (AArch64 `fmla v0.4s, v1.4s, v2.s[0]`)."""
        return self._isa.multiplies_by_lane


def _features(attrs: dict[str, Value]) -> frozenset[str]:
    """Return the features of the processor that `attrs` name; empty for kinds without a CPU."""
    isa = ISAS.get(str(attrs.get("mtriple", "")).split("-")[0])
    mattr = attrs.get("mattr", ())
    if isa is None or not isinstance(mattr, tuple):
        return frozenset()
    flags = tuple(flag for flag in mattr if isinstance(flag, str))
    cpu = attrs.get("mcpu", "")
    return isa.apply(str(cpu[0] if isinstance(cpu, tuple) else cpu), flags)
