"""Whole models: compiled, exported, loaded and compared with ONNX Runtime and with float64."""
