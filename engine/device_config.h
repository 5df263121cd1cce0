// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeviceOptions` select the device of a run; `init_on()` joins the job on it.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/kernels/cpu_matmul.h"

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::engine {

enum class DeviceChoice {
  kAuto, ///< CUDA if there is a device, else the CPU
  kCpu,
  kCuda,
};

/// How CUDA multiplies float32 matrices.
enum class CudaMatmul {
  kFloat32, ///< LibTorch's default
  kTf32, ///< factors rounded to 10 bits of mantissa, on tensor cores
};

/// Whose kernels compute: see [Note: fused operators].
enum class FusedOperators {
  kAuto, ///< those that are faster
  kOff, ///< LibTorch's, bit for bit
};

struct DeviceOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  /// The implementation of matrix products on the CPU.
  CpuMatmul matmul = CpuMatmul::kAuto;
  CudaMatmul cuda_matmul = CudaMatmul::kFloat32;
  /// On CUDA also which products; see use_fast_operators().
  FusedOperators fused = FusedOperators::kAuto;
  double timeout_s = 600; ///< InitOptions::timeout
  bool keep_freed_memory = true; ///< as in InitOptions
  bool reuse_gradients = true; ///< likewise
};

void visit_fields(runtime::OptionFields& fields, DeviceOptions& options);

InitOptions init_options(const DeviceOptions& options);

/// Selects the implementations of operators on the device, for the process: of
/// matrix products, and of what kernels of our own compute.
void use_operators(const DeviceOptions& options, const at::Device& device);

/// Joins the job (tessera::init()) with the requested device as World::device()
/// and has it use_operators(). Call it before anything asks LibTorch about
/// CUDA.
/// @throws tessera::Error for kCuda without a CUDA device, with the reason.
World& init_on(const DeviceOptions& options);

} // namespace tessera::engine
