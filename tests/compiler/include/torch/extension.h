// What DeepSpeed's operators use of PyTorch's C++ interface. The header of this name in PyTorch includes all of
// it, for which a compiler takes half as long again.
#pragma once
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
