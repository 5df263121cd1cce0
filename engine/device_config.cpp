// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/device_config.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"

namespace tessera {

DeviceChoice read_device(const ConfigReader& reader) {
  return reader.get_enum<DeviceChoice>(
      "device",
      {{"auto", DeviceChoice::kAuto},
       {"cpu", DeviceChoice::kCpu},
       {"cuda", DeviceChoice::kCuda}},
      DeviceChoice::kAuto);
}

World& init_on(DeviceChoice choice) {
  InitOptions options;
  options.use_cuda = choice != DeviceChoice::kCpu;
  World& world = init(options);
  if (choice == DeviceChoice::kCuda && !world.device().is_cuda()) {
    const std::string& reason = load_cuda_backend().reason;
    TESSERA_FAIL(
        "device is 'cuda', but this process has none: ",
        reason.empty() ? "TESSERA_CUDA=0 is set" : reason,
        ". Set device=auto or device=cpu to train on the CPU.");
  }
  return world;
}

} // namespace tessera
