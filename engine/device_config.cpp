// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/device_config.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"

#include <ATen/Context.h>

namespace tessera::engine {

DeviceOptions read_device(const runtime::ConfigReader& reader) {
  DeviceOptions options;
  options.device = reader.get_enum<DeviceChoice>(
      "device",
      {{"auto", DeviceChoice::kAuto},
       {"cpu", DeviceChoice::kCpu},
       {"cuda", DeviceChoice::kCuda}},
      options.device);
  options.matmul = reader.get_enum<CpuMatmul>(
      "cpu_matmul",
      {{"auto", CpuMatmul::kAuto},
       {"libtorch", CpuMatmul::kLibTorch},
       {"onednn", CpuMatmul::kOneDnn}},
      options.matmul);
  options.cuda_matmul = reader.get_enum<CudaMatmul>(
      "cuda_matmul",
      {{"float32", CudaMatmul::kFloat32}, {"tf32", CudaMatmul::kTf32}},
      options.cuda_matmul);
  return options;
}

World& init_on(const DeviceOptions& options) {
  InitOptions init_options;
  init_options.use_cuda = options.device != DeviceChoice::kCpu;
  World& world = init(init_options);
  if (options.device == DeviceChoice::kCuda && world.device().is_cpu()) {
    const std::string& reason = runtime::load_cuda_backend().reason;
    TESSERA_FAIL(
        "device is 'cuda', but this process has no CUDA device: {}. Set device=auto or device=cpu to train on the CPU.",
        reason.empty() ? "TESSERA_CUDA=0 is set" : reason);
  }
  if (world.device().is_cpu()) {
    set_cpu_matmul(options.matmul);
  } else if (options.cuda_matmul == CudaMatmul::kTf32) {
    at::globalContext().setAllowTF32CuBLAS(true);
  }
  return world;
}

} // namespace tessera::engine
