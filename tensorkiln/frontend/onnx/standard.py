"""ONNX operators up to opset 28 without an importer: a message on one suggests no other name."""

_NAMES = """
Acos Acosh AffineGrid Asin Asinh Atan Atanh Bernoulli BitCast BitShift BitwiseAnd BitwiseNot
BitwiseOr BitwiseXor BlackmanWindow CausalConvWithState CenterCropPad Col2Im Compress
ConcatFromSequence CumProd DFT DeformConv Det GRU GlobalLpPool GridSample HammingWindow
HannWindow ImageDecoder LSTM LinearAttention Loop LpPool MaxRoiPool MaxUnpool
MeanVarianceNormalization MelWeightMatrix Multinomial NegativeLogLikelihoodLoss
NonMaxSuppression NonZero Optional OptionalGetElement OptionalHasElement RNN RandomNormal
RandomNormalLike RandomUniform RandomUniformLike RegexFullMatch ReverseSequence RoiAlign
STFT Scan Scatter ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty
SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss
SplitToSequence StringConcat StringNormalizer StringSplit SwiGLU TensorScatter
TfIdfVectorizer TopK Unique
"""
NOT_IMPORTED = frozenset(_NAMES.split())
