"""Direct and depthwise convolutions."""
