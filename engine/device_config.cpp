// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/device_config.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/kernels/fast_operators.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/runtime/memory/product_padding.h"

#include <ATen/Context.h>

#include <chrono>
#include <cmath>
#include <cstdint>

namespace tessera::engine {

void visit_fields(runtime::OptionFields& fields, DeviceOptions& options) {
  fields.choice(
      "device",
      options.device,
      {{"auto", DeviceChoice::kAuto},
       {"cpu", DeviceChoice::kCpu},
       {"cuda", DeviceChoice::kCuda}},
      "`auto`: CUDA if there is a device");
  fields.choice(
      "cpu_matmul",
      options.matmul,
      {{"auto", CpuMatmul::kAuto},
       {"libtorch", CpuMatmul::kLibTorch},
       {"onednn", CpuMatmul::kOneDnn},
       {"bfloat16", CpuMatmul::kBfloat16}},
      "what multiplies float32 matrices on the CPU: `libtorch` (MKL), `onednn`, `auto`: oneDNN where MKL does not use AVX-512, or `bfloat16`: factors rounded to 8 bits of mantissa, sums in float32, several times as fast on processors with AVX512-BF16; an error on others");
  fields.choice(
      "cuda_matmul",
      options.cuda_matmul,
      {{"float32", CudaMatmul::kFloat32}, {"tf32", CudaMatmul::kTf32}},
      "`tf32`: float32 matrix products and convolutions on CUDA run on tensor cores, with factors rounded to 10 bits of mantissa, several times as fast (Ampere and later; no effect on bfloat16 and float16)");
  fields.choice(
      "fused",
      options.fused,
      {{"auto", FusedOperators::kAuto}, {"off", FusedOperators::kOff}},
      "`auto`: kernels of our own where they are faster than LibTorch's operators: the loss of language models, gated feed-forward layers, rotary positions; on the CPU also norms with the sums and the dropout before them; on CUDA also products of 16-bit matrices with odd rows (a vocabulary of 50,257) by padded copies, and biases added in packs; `off`: LibTorch's, bit for bit");
  fields.field(
      "timeout_s",
      options.timeout_s,
      {.min = 0, .max = 1 << 20, .open_min = true},
      "seconds that a collective, and the start of a job, wait for the slowest rank; `TESSERA_TIMEOUT_S` in the environment replaces it");
  fields.field(
      "keep_freed_memory",
      options.keep_freed_memory,
      "keep the memory of freed CPU tensors for later ones, which is faster; `TESSERA_KEEP_MEMORY=0` turns it off too");
  fields.field(
      "reuse_gradients",
      options.reuse_gradients,
      "backward's softmax and activation functions write over gradients that nothing else needs, which takes less memory and gives the same bits");
}

InitOptions init_options(const DeviceOptions& options) {
  return {
      .timeout = std::chrono::milliseconds(
          static_cast<int64_t>(std::ceil(options.timeout_s * 1000))),
      .keep_freed_memory = options.keep_freed_memory,
      .reuse_gradients = options.reuse_gradients,
      .use_cuda = options.device != DeviceChoice::kCpu};
}

void use_operators(const DeviceOptions& options, const at::Device& device) {
  const bool fuses = options.fused == FusedOperators::kAuto;
  runtime::use_fused_operators(fuses);
  if (device.is_cpu()) {
    set_cpu_matmul(options.matmul);
    runtime::plan_padded_products(fuses); // for CUDA
  } else {
    // LibTorch's own default has convolutions in TF32 and products in float32.
    const bool tf32 = options.cuda_matmul == CudaMatmul::kTf32;
    at::globalContext().setAllowTF32CuBLAS(tf32);
    at::globalContext().setAllowTF32CuDNN(tf32);
    runtime::use_fast_operators(fuses, device.type());
  }
}

World& init_on(const DeviceOptions& options) {
  World& world = init(init_options(options));
  if (options.device == DeviceChoice::kCuda && world.device().is_cpu()) {
    const std::string& reason = runtime::load_cuda_backend().reason;
    TESSERA_FAIL(
        "device is 'cuda', but this process has no CUDA device: {}. Set device=auto or device=cpu to train on the CPU.",
        reason.empty() ? "TESSERA_CUDA=0 is set" : reason);
  }
  use_operators(options, world.device());
  return world;
}

} // namespace tessera::engine
