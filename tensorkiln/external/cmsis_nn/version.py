"""The release of CMSIS-NN whose functions generated code calls, and where it is published."""

URL = "https://github.com/ARM-software/CMSIS-NN.git"
VERSION = "v7.0.0"
