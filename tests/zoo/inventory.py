"""What operators, attributes, types and shape arithmetic the zoo's ONNX files hold, as Markdown.

`python -m tests.zoo.inventory OUT.md [name ...]`
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.zoo import light
from tests.zoo.registry import EXPORTS

INTEGER_TYPES = {TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}

# Node listings of what exporters make of one construct: export, first node, how many.
LISTINGS = {
    "GELU, layer norm, eager attention and mask, opset 11, static": ("bert_2-legacy11", 0, 84),
    "the same with symbolic batch and sequence, opset 13": ("bert_2-legacy13-dynamic", 0, 140),
    "layer norm and GELU as operators, opset 20, symbolic": ("bert_2-dynamic", 0, 50),
    "SDPA with a boolean-derived mask, opset 20, symbolic": ("bert_2_sdpa-dynamic", 0, 70),
    "SDPA with a mask, legacy, opset 17, symbolic": ("bert_2_sdpa-legacy17-dynamic", 0, 150),
    "SDPA as the Attention operator, opset 23": ("bert_2_sdpa-opset23", 0, 42),
    "causal SDPA and tanh GELU, opset 20, static": ("gpt2_2", 0, 50),
    "causal SDPA and tanh GELU, opset 20, symbolic": ("gpt2_2-dynamic", 0, 90),
    "causal SDPA and tanh GELU, legacy, opset 14": ("gpt2_2-legacy14", 0, 120),
    "causal SDPA, legacy, opset 17, symbolic": ("gpt2_2-legacy17-dynamic", 0, 210),
    "causal Attention operator, opset 23": ("gpt2_2-opset23", 0, 40),
    "ViT patches, class token, attention, opset 20": ("vit_2", 0, 40),
    "ViT with symbolic batch, opset 20": ("vit_2-batch", 0, 55),
    "ViT patches, class token, attention, legacy, opset 17": ("vit_2-legacy17", 0, 75),
    "ConvNeXt block with exploded layer norm and GELU, opset 13": (
        "convnext_small-legacy13",
        0,
        50,
    ),
    "ConvNeXt block, opset 20": ("convnext_small", 0, 25),
    "ReLU6, legacy, opset 11": ("mobilenetv2-legacy11", 0, 14),
    "ReLU6, opset 20, and the classifier": ("mobilenetv2", 88, 12),
    "ResNet head, opset 20, symbolic batch": ("resnet18-batch", 44, 8),
}


def attribute_text(attribute: onnx.AttributeProto) -> str:
    """`name=value`, tensors by dtype, shape and small values."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        value = tensor_text(value)
    elif isinstance(value, bytes):
        value = value.decode(errors="replace")
    elif isinstance(value, list | tuple) or hasattr(value, "__len__"):
        value = list(value)
    return f"{attribute.name}={value}"


def tensor_text(tensor: TensorProto) -> str:
    """dtype[shape], with the values when there are at most eight."""
    dtype = TensorProto.DataType.Name(tensor.data_type).lower()
    text = f"{dtype}{list(tensor.dims)}"
    if int(np.prod(list(tensor.dims))) <= 8:
        text += f"={numpy_helper.to_array(tensor).tolist()}"
    return text


def value_types(model: ModelProto) -> dict[str, tuple[int, str]]:
    """Value name -> (element type, shape text), by ONNX's own shape inference."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph = model.graph
    types: dict[str, tuple[int, str]] = {}
    for entry in [*graph.input, *graph.value_info, *graph.output]:
        tensor = entry.type.tensor_type
        dims = [d.dim_param or d.dim_value for d in tensor.shape.dim]
        types[entry.name] = (tensor.elem_type, str(dims).replace("'", ""))
    for tensor in graph.initializer:
        types[tensor.name] = (tensor.data_type, str(list(tensor.dims)))
    return types


def node_line(node: NodeProto, types: dict[str, tuple[int, str]], constants: dict[str, str]) -> str:
    """One node as `out: type = Op(inputs){attributes}`; constants are shown in place."""
    inputs = ", ".join(constants.get(name, name or "-") for name in node.input)
    outputs = ", ".join(
        f"{name}: {TensorProto.DataType.Name(types[name][0]).lower()}{types[name][1]}"
        if name in types
        else name
        for name in node.output
    )
    attributes = ", ".join(attribute_text(a) for a in node.attribute)
    domain = f"{node.domain}." if node.domain else ""
    return f"{outputs} = {domain}{node.op_type}({inputs})" + (
        f" {{{attributes}}}" if attributes else ""
    )


def small_constants(model: ModelProto) -> dict[str, str]:
    """Value name -> text of every initializer or Constant node of at most eight elements."""
    constants = {}
    for tensor in model.graph.initializer:
        constants[tensor.name] = f"<{tensor_text(tensor)}>"
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = f"<{tensor_text(node.attribute[0].t)}>"
    return constants


def describe(name: str, model: ModelProto, exporter: str) -> list[str]:
    """The section of one model: interface, operators, integer nodes."""
    graph = model.graph
    types = value_types(model)
    constants = small_constants(model)
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    weights = {tensor.name for tensor in graph.initializer}
    kinds = Counter(TensorProto.DataType.Name(t.data_type) for t in graph.initializer)
    facts = f"{exporter}; opset {opsets}; IR {model.ir_version}; {len(graph.node)} nodes"
    facts += f"; {len(model.functions)} local functions; initializers {dict(kinds)}"
    lines = [f"## {name}", "", facts]
    for kind, entries in (("input", graph.input), ("output", graph.output)):
        for entry in entries:
            if entry.name not in weights:
                dtype, shape = types[entry.name]
                lines.append(f"- {kind} `{entry.name}` {TensorProto.DataType.Name(dtype)}{shape}")
    also = sum(entry.name in weights for entry in graph.input)
    if also:
        lines.append(f"- {also} initializers are graph inputs as well (IR version 3)")
    lines += [
        "",
        "| operator | n | element types in -> out | attributes (value: count) |",
        "|---|---|---|---|",
    ]
    lines += operator_rows(graph, types)
    integer = [
        node_line(node, types, constants)
        for node in graph.node
        if any(types.get(o, (0, ""))[0] in INTEGER_TYPES for o in node.output)
    ]
    if integer:
        lines += [
            "",
            f"Nodes that produce int64/int32/bool ({len(integer)}; first 60):",
            "```",
        ]
        lines += [*integer[:60], "```"]
    return [*lines, ""]


def operator_rows(graph: onnx.GraphProto, types: dict[str, tuple[int, str]]) -> list[str]:
    """One table row per operator."""
    groups: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        groups[f"{node.domain}.{node.op_type}" if node.domain else node.op_type].append(node)
    rows = []
    for op, nodes in sorted(groups.items()):
        values: dict[str, Counter[str]] = defaultdict(Counter)
        signatures: Counter[str] = Counter()
        for node in nodes:
            for attribute in node.attribute:
                text = attribute_text(attribute).partition("=")[2]
                values[attribute.name][text] += 1
            signatures[signature(node, types)] += 1
        attributes = "; ".join(
            f"{key}: " + ", ".join(f"{v} x{n}" for v, n in counter.most_common(12))
            for key, counter in sorted(values.items())
        )
        kinds = "; ".join(f"{s} x{n}" for s, n in signatures.most_common(6))
        rows.append(f"| {op} | {len(nodes)} | {kinds} | {attributes.replace('|', '/')} |")
    return rows


def signature(node: NodeProto, types: dict[str, tuple[int, str]]) -> str:
    """`f32r4,f32r1 -> f32r4`: element type and rank of every input and output."""
    short = {1: "f32", 7: "i64", 6: "i32", 9: "bool", 11: "f64", 10: "f16", 16: "bf16"}

    def one(name: str) -> str:
        if not name:
            return "-"
        if name not in types:
            return "?"
        dtype, shape = types[name]
        rank = 0 if shape == "[]" else shape.count(",") + 1
        return f"{short.get(dtype, str(dtype))}r{rank}"

    return f"{','.join(map(one, node.input))} -> {','.join(map(one, node.output))}"


def listing(title: str, model: ModelProto, start: int, count: int) -> list[str]:
    """`count` consecutive nodes from `start` as text, Constant nodes left out."""
    types, constants = value_types(model), small_constants(model)
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    lines = [f"### {title}", "```"]
    lines += [node_line(node, types, constants) for node in nodes[start : start + count]]
    return [*lines, "```", ""]


def main(arguments: list[str]) -> None:
    """Writes the inventory of the named models (all of them by default)."""
    from tests.zoo.export import model_path

    out, names = Path(arguments[0]), arguments[1:]
    summary: dict[str, set[str]] = defaultdict(set)
    body: list[str] = []
    for name, entry in EXPORTS.items():
        if names and name not in names:
            continue
        model = onnx.load(model_path(name))
        road = "torch dynamo exporter" if entry.dynamo else "torch legacy (TorchScript) exporter"
        body += describe(name, model, road)
        for node in model.graph.node:
            summary[node.op_type].add(name)
    for name in light.NAMES:
        if names and f"light_{name}" not in names:
            continue
        model = light.light_model(name)
        body += describe(f"light_{name}", model, "onnx package, weights filled in")
        for node in model.graph.node:
            summary[node.op_type].add(f"light_{name}")
    head = [
        "# Operator inventory of the model zoo",
        "",
        "| operator | models |",
        "|---|---|",
    ]
    for op, users in sorted(summary.items(), key=lambda item: (-len(item[1]), item[0])):
        networks = sorted(users)
        head.append(
            f"| {op} | {len(networks)}: {', '.join(networks[:8])}{' ...' * (len(networks) > 8)} |"
        )
    head += ["", "# Node listings", ""]
    for title, (name, start, count) in LISTINGS.items():
        if not names or name in names:
            model = onnx.load(model_path(name))
            head += listing(f"{title} (`{name}`)", model, start, count)
    out.write_text("\n".join([*head, "", "# Every model", "", *body]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
