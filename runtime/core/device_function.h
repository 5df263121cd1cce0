// SPDX-License-Identifier: Apache-2.0
#pragma once
// TESSERA_DEVICE marks functions that kernels for the CPU and for CUDA call;
// TESSERA_HOST_DEVICE those that the launch of a CUDA kernel calls as well.

#if defined(__CUDACC__)
#define TESSERA_DEVICE __device__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_DEVICE
#define TESSERA_HOST_DEVICE
#endif
