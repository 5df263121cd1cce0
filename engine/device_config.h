// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_device()` reads the device and its settings from a configuration;
// `init_on()` joins the job on it.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/kernels/cpu_matmul.h"

namespace tessera::engine {

enum class DeviceChoice {
  kAuto, ///< CUDA if there is a device, else the CPU
  kCpu,
  kCuda,
};

struct DeviceOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  /// The implementation of matrix products on the CPU.
  CpuMatmul matmul = CpuMatmul::kAuto;
};

/// Reads `device`: "auto" (the default), "cpu" or "cuda"; and `cpu_matmul`:
/// "auto" (the default), "libtorch" or "onednn".
/// @throws tessera::Error on another value, naming the file and the allowed
///   values.
DeviceOptions read_device(const runtime::ConfigReader& reader);

/// Joins the job (tessera::init()) with the requested device as World::device()
/// and, on the CPU, selects the implementation of matrix products. Call it
/// before anything asks LibTorch about CUDA.
/// @throws tessera::Error for kCuda without a CUDA device, with the reason.
World& init_on(const DeviceOptions& options);

} // namespace tessera::engine
