// SPDX-License-Identifier: Apache-2.0
#pragma once
// The device that a configuration file asks for.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/config.h"

namespace tessera {

enum class DeviceChoice {
  kAuto, ///< CUDA where there is a device, else the CPU
  kCpu,
  kCuda,
};

/// Reads `device`: "auto" (the default), "cpu" or "cuda".
/// @throws tessera::Error on another value, naming the file and these.
DeviceChoice read_device(const ConfigReader& reader);

/// Joins the job (tessera::init()) such that World::device() is what was asked
/// for. Call it before LibTorch is asked about CUDA.
/// @throws tessera::Error for kCuda where there is none, with the reason.
World& init_on(DeviceChoice choice);

} // namespace tessera
