// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stands for CUDA's header of this name where .cu files are compiled as C++:
// the types in the signatures of launch functions.

using cudaError_t = int;
using cudaStream_t = struct CUstream_st*;

inline constexpr cudaError_t cudaSuccess = 0;
inline constexpr cudaError_t cudaErrorInvalidValue = 1;
inline constexpr cudaError_t cudaErrorInvalidConfiguration = 9;
