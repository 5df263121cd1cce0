// SPDX-License-Identifier: Apache-2.0
#pragma once
// TESSERA_DEVICE marks functions that kernels for the CPU and for CUDA call.

#if defined(__CUDACC__)
#define TESSERA_DEVICE __device__
#else
#define TESSERA_DEVICE
#endif
