// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/adamw_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tessera {

namespace {

constexpr int kThreads = 256;

// nvcc may fuse a product and a sum written with operators; it may not touch
// these. The arithmetic is that of adamw_kernel.h, rounding for rounding.
__device__ float add(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ float mul(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ float div(float a, float b) {
  return __fdiv_rn(a, b);
}
__device__ float fused(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
__device__ float root(float a) {
  return __fsqrt_rn(a);
}
__device__ double add(double a, double b) {
  return __dadd_rn(a, b);
}
__device__ double mul(double a, double b) {
  return __dmul_rn(a, b);
}
__device__ double div(double a, double b) {
  return __ddiv_rn(a, b);
}
__device__ double fused(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
__device__ double root(double a) {
  return __dsqrt_rn(a);
}

template <typename T>
__device__ void update(
    T& master,
    T grad,
    T& exp_avg,
    T& exp_avg_sq,
    const AdamWScalars<T>& s) {
  grad = mul(grad, s.grad_scale);
  exp_avg = fused(grad, s.one_minus_beta1, mul(exp_avg, s.beta1));
  exp_avg_sq =
      fused(mul(s.one_minus_beta2, grad), grad, mul(exp_avg_sq, s.beta2));
  T denom = add(div(root(exp_avg_sq), s.sqrt_bias_correction2), s.eps);
  master =
      add(mul(master, s.decay), div(mul(s.minus_step_size, exp_avg), denom));
}

template <LowPrecision kFormat>
__device__ uint16_t round_to(float value) {
  if constexpr (kFormat == LowPrecision::kBFloat16) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  } else {
    return __half_as_ushort(__float2half_rn(value));
  }
}

/// kWidth neighbouring elements, moved by one instruction.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

/// Grid-stride over packs of kWidth elements; the last elements, fewer than
/// kWidth, go to the first threads.
template <typename T, LowPrecision kFormat, int kWidth>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamWShard<T> shard) {
  using Values = Pack<T, kWidth>;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t packs = shard.numel / kWidth;
  auto* masters = reinterpret_cast<Values*>(shard.master);
  auto* grads = reinterpret_cast<const Values*>(shard.grad);
  auto* exp_avgs = reinterpret_cast<Values*>(shard.exp_avg);
  auto* exp_avg_sqs = reinterpret_cast<Values*>(shard.exp_avg_sq);
  for (int64_t i = thread; i < packs; i += stride) {
    Values master = masters[i];
    const Values grad = grads[i];
    Values exp_avg = exp_avgs[i];
    Values exp_avg_sq = exp_avg_sqs[i];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      update(
          master.values[k],
          grad.values[k],
          exp_avg.values[k],
          exp_avg_sq.values[k],
          shard.scalars);
    }
    masters[i] = master;
    exp_avgs[i] = exp_avg;
    exp_avg_sqs[i] = exp_avg_sq;
    if constexpr (kFormat != LowPrecision::kNone) {
      Pack<uint16_t, kWidth> low;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        low.values[k] = round_to<kFormat>(static_cast<float>(master.values[k]));
      }
      reinterpret_cast<Pack<uint16_t, kWidth>*>(shard.low_precision)[i] = low;
    }
  }
  const int64_t i = packs * kWidth + thread;
  if (i < shard.numel) {
    update(
        shard.master[i],
        shard.grad[i],
        shard.exp_avg[i],
        shard.exp_avg_sq[i],
        shard.scalars);
    if constexpr (kFormat != LowPrecision::kNone) {
      shard.low_precision[i] =
          round_to<kFormat>(static_cast<float>(shard.master[i]));
    }
  }
}

bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

template <typename T, LowPrecision kFormat>
cudaError_t launch(const AdamWShard<T>& shard, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  const bool packed =
      is_aligned(shard.master, 16) && is_aligned(shard.grad, 16) &&
      is_aligned(shard.exp_avg, 16) && is_aligned(shard.exp_avg_sq, 16) &&
      is_aligned(shard.low_precision, sizeof(uint16_t) * kWidth);
  int device = 0;
  int processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(
        &processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) {
    return error;
  }
  const int64_t packs = shard.numel / (packed ? kWidth : 1);
  const int64_t needed = (packs + kThreads - 1) / kThreads;
  // As many blocks as are resident at 2048 threads a multiprocessor.
  const int64_t resident = int64_t{processors} * (2048 / kThreads);
  const int64_t wanted = needed < resident ? needed : resident;
  const auto blocks = static_cast<unsigned>(wanted < 1 ? 1 : wanted);
  if (packed) {
    adamw_kernel<T, kFormat, kWidth><<<blocks, kThreads, 0, stream>>>(shard);
  } else {
    adamw_kernel<T, kFormat, 1><<<blocks, kThreads, 0, stream>>>(shard);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const AdamWShard<T>& shard, cudaStream_t stream) {
  if (shard.numel == 0) {
    return cudaSuccess;
  }
  switch (shard.low_precision_format) {
    case LowPrecision::kNone:
      return launch<T, LowPrecision::kNone>(shard, stream);
    case LowPrecision::kBFloat16:
      return launch<T, LowPrecision::kBFloat16>(shard, stream);
    case LowPrecision::kFloat16:
      return launch<T, LowPrecision::kFloat16>(shard, stream);
  }
  return cudaErrorInvalidValue;
}

} // namespace

cudaError_t launch_adamw(const AdamWShard<float>& shard, cudaStream_t stream) {
  return launch(shard, stream);
}

cudaError_t launch_adamw(const AdamWShard<double>& shard, cudaStream_t stream) {
  return launch(shard, stream);
}

} // namespace tessera
