"""The twelve models that are measured, by their names in the zoo; the decoder at two lengths."""

MODELS = (
    "mlp",
    "resnet18",
    "resnet50",
    "mobilenetv2",
    "bert",
    "vit_b16",
    "gpt2",
    "convnext_t",
    "squeezenet",
    "densenet121",
    "efficientnet_b0",
    "llama_1",
    "llama_128",
)

# Those that are measured in int8: quantised by ONNX Runtime's tool.
QUANTISED = ("resnet50", "mobilenetv2", "bert", "vit_b16")
