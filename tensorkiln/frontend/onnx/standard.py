"""The operators of ONNX up to opset 28 and of ai.onnx.ml: a message on one that is not imported
suggests no other, but says what helps."""

_NAMES = """
Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
BatchNormalization Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
BlackmanWindow Cast CastLike CausalConvWithState Ceil Celu CenterCropPad Clip Col2Im Compress
Concat ConcatFromSequence Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumProd
CumSum DFT DeformConv DepthToSpace DequantizeLinear Det Div Dropout DynamicQuantizeLinear Einsum
Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm
GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization
HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If ImageDecoder
InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual
LinearAttention Log LogSoftmax Loop LpNormalization LpPool MatMul MatMulInteger Max MaxPool
MaxRoiPool MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Multinomial
Neg NegativeLogLikelihoodLoss NonMaxSuppression NonZero Not OneHot Optional OptionalGetElement
OptionalHasElement Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN
RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2
ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
RegexFullMatch Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding Round STFT Scan
Scatter ScatterElements ScatterND Selu SequenceAt SequenceConstruct SequenceEmpty SequenceErase
SequenceInsert SequenceLength SequenceMap Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax
SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze
StringConcat StringNormalizer StringSplit Sub Sum SwiGLU Swish Tan Tanh TensorScatter
TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Upsample Where Xor
ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer
LabelEncoder LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor
Scaler TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor ZipMap
"""
STANDARD = frozenset(_NAMES.split())

NO_STRINGS = "tensors hold no strings: do this before the model, and give it numbers"
_OUTSIDE = """StringConcat StringNormalizer StringSplit RegexFullMatch CastMap
CategoryMapper DictVectorizer"""
# What helps with an operator that is not imported.
HINTS = {
    **dict.fromkeys(_OUTSIDE.split(), NO_STRINGS),
    "ImageDecoder": "decode pictures before the model, and give it their elements",
    "MaxRoiPool": "RoiAlign is supported, which detection models are exported with today",
}
TRAINING = "ai.onnx.preview.training"


def is_onnx(domain: str) -> bool:
    """Whether a domain is one of ONNX's own, known here or not."""
    return domain in ("", "ai.onnx") or domain.startswith("ai.onnx.")
