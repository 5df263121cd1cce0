// SPDX-License-Identifier: Apache-2.0
#pragma once
// The device that a configuration file asks for, and how it computes there.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/kernels/cpu_matmul.h"

namespace tessera {

enum class DeviceChoice {
  kAuto, ///< CUDA where there is a device, else the CPU
  kCpu,
  kCuda,
};

struct DeviceOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  /// On the CPU.
  CpuMatmul matmul = CpuMatmul::kAuto;
};

/// Reads `device`: "auto" (the default), "cpu" or "cuda"; and `cpu_matmul`:
/// "auto" (the default), "libtorch" or "onednn".
/// @throws tessera::Error on another value, naming the file and these.
DeviceOptions read_device(const ConfigReader& reader);

/// Joins the job (tessera::init()) such that World::device() is what was asked
/// for, and on the CPU picks what multiplies matrices. Call it before LibTorch
/// is asked about CUDA.
/// @throws tessera::Error for kCuda where there is none, with the reason.
World& init_on(const DeviceOptions& options);

} // namespace tessera
