// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/layer_kernels.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/random/counter_random.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::runtime {

namespace {

// One plugin per process; it registers before any kernel is requested.
LayerKernels layer_kernels;

/// Elements [first, first + count) in float32.
at::Tensor wide_values(
    const void* data,
    ElementType type,
    int64_t first,
    int64_t count) {
  return detail::array_tensor(data, first + count, detail::dtype_of(type))
      .narrow(0, first, count)
      .to(at::kFloat);
}

void put_values(
    void* data,
    ElementType type,
    int64_t first,
    const at::Tensor& values) {
  detail::array_tensor(data, first + values.numel(), detail::dtype_of(type))
      .narrow(0, first, values.numel())
      .copy_(values);
}

template <typename Body>
void for_gated_chunks(const GatedRows& rows, const Body& body) {
  const detail::PlainOperators plain;
  for (int64_t first = 0; first < rows.numel; first += detail::kOperatorChunk) {
    body(first, std::min(detail::kOperatorChunk, rows.numel - first));
  }
}

at::Tensor gate_by_operators(GateFunction function, const at::Tensor& gate) {
  switch (function) {
    case GateFunction::kSilu:
      return at::silu(gate);
    case GateFunction::kGelu:
      return at::gelu(gate);
    case GateFunction::kTanhGelu:
      return at::gelu(gate, "tanh");
  }
  return {};
}

at::Tensor gate_gradient_by_operators(
    GateFunction function,
    const at::Tensor& gradient,
    const at::Tensor& gate) {
  switch (function) {
    case GateFunction::kSilu:
      return at::silu_backward(gradient, gate);
    case GateFunction::kGelu:
      return at::gelu_backward(gradient, gate);
    case GateFunction::kTanhGelu:
      return at::gelu_backward(gradient, gate, "tanh");
  }
  return {};
}

void gated_by_operators(const GatedRows& rows) {
  for_gated_chunks(rows, [&](int64_t first, int64_t count) {
    const at::Tensor gate = wide_values(rows.gate, rows.type, first, count);
    const at::Tensor up = wide_values(rows.up, rows.type, first, count);
    put_values(
        rows.y, rows.type, first, gate_by_operators(rows.function, gate) * up);
  });
}

void gated_backward_by_operators(const GatedRows& rows) {
  for_gated_chunks(rows, [&](int64_t first, int64_t count) {
    const at::Tensor from = wide_values(rows.gradient, rows.type, first, count);
    const at::Tensor gate = wide_values(rows.gate, rows.type, first, count);
    const at::Tensor up = wide_values(rows.up, rows.type, first, count);
    put_values(
        rows.gradient_gate,
        rows.type,
        first,
        gate_gradient_by_operators(rows.function, from * up, gate));
    put_values(
        rows.gradient_up,
        rows.type,
        first,
        from * gate_by_operators(rows.function, gate));
  });
}

void rotate_by_operators(const RotaryHeads& all) {
  const detail::PlainOperators plain;
  const at::ScalarType dtype = detail::dtype_of(all.type);
  const auto table = [&](const void* data) {
    const int64_t batch = all.table_stride == 0 ? 1 : all.batch;
    return detail::array_tensor(data, batch * all.tokens * all.half, dtype)
        .view({batch, 1, all.tokens, all.half})
        .to(at::kFloat);
  };
  const at::Tensor cosines = table(all.cosines);
  const at::Tensor sines =
      all.inverse ? table(all.sines).neg() : table(all.sines);
  for (const HeadRows& rows : all.rows) {
    if (rows.heads == 0) {
      continue;
    }
    const auto heads = [&](const void* data, const int64_t(&strides)[3]) {
      const int64_t numel = (all.batch - 1) * strides[0] +
                            (rows.heads - 1) * strides[1] +
                            (all.tokens - 1) * strides[2] + all.features;
      return detail::array_tensor(data, numel, dtype)
          .as_strided(
              {all.batch, rows.heads, all.tokens, all.features},
              {strides[0], strides[1], strides[2], 1});
    };
    const at::Tensor x = heads(rows.x, rows.x_strides);
    const at::Tensor y = heads(rows.y, rows.y_strides);
    const auto of_pairs = [&](const at::Tensor& features, int64_t which) {
      return all.adjacent ? features.slice(3, which, 2 * all.half, 2)
                          : features.narrow(3, which * all.half, all.half);
    };
    const at::Tensor a = of_pairs(x, 0).to(at::kFloat);
    const at::Tensor b = of_pairs(x, 1).to(at::kFloat);
    of_pairs(y, 0).copy_(a * cosines - b * sines);
    of_pairs(y, 1).copy_(b * cosines + a * sines);
    const int64_t rest = all.features - 2 * all.half;
    y.narrow(3, 2 * all.half, rest).copy_(x.narrow(3, 2 * all.half, rest));
  }
}

/// [numel] of the device in [-3, 3), always the same.
at::Tensor example_values(
    int64_t numel,
    ElementType type,
    c10::Device device,
    uint64_t stream) {
  const at::Tensor host = at::empty({numel}, detail::dtype_of(type));
  fill_uniform(host, {/*seed=*/11, stream}, 0, -3, 3);
  return host.to(device);
}

/// Results may round to one of two neighbors.
double rounding_of(ElementType type) {
  switch (type) {
    case ElementType::kBFloat16:
      return 0x1p-7;
    case ElementType::kFloat16:
      return 0x1p-10;
    default:
      return 1e-6;
  }
}

// Functions of float32 are exact to some units in the last place.
constexpr double kOfLargest = 1e-6;

/// In packs, more than a block of them, and element by element.
std::vector<KernelResult> solve_gated(
    const LayerKernels& kernels,
    ElementType type,
    c10::Device device) {
  std::vector<KernelResult> results;
  for (const auto function :
       {GateFunction::kSilu, GateFunction::kGelu, GateFunction::kTanhGelu}) {
    for (const int64_t numel : {int64_t{4104}, int64_t{4103}}) {
      const auto values = [&](uint64_t stream) {
        return example_values(numel, type, device, stream);
      };
      const at::Tensor gate = values(0);
      const at::Tensor up = values(1);
      const at::Tensor gradient = values(2);
      const at::Tensor y = at::zeros_like(gate);
      const at::Tensor gradient_gate = at::zeros_like(gate);
      const at::Tensor gradient_up = at::zeros_like(gate);
      kernels.gated(
          {.function = function,
           .type = type,
           .gate = gate.const_data_ptr(),
           .up = up.const_data_ptr(),
           .numel = numel,
           .y = y.mutable_data_ptr()});
      kernels.gated_backward(
          {.function = function,
           .type = type,
           .gate = gate.const_data_ptr(),
           .up = up.const_data_ptr(),
           .numel = numel,
           .gradient = gradient.const_data_ptr(),
           .gradient_gate = gradient_gate.mutable_data_ptr(),
           .gradient_up = gradient_up.mutable_data_ptr()});
      const auto add = [&](const char* name, const at::Tensor& result) {
        results.push_back(
            {formatted(
                 "{} of function {} of {} numbers",
                 name,
                 static_cast<int64_t>(function),
                 numel),
             result,
             rounding_of(type),
             kOfLargest});
      };
      add("the results", y);
      add("the gradients of the gate", gradient_gate);
      add("the gradients of the other factor", gradient_up);
    }
  }
  return results;
}

/// Both layouts, in packs and element by element, with features that are not
/// rotated, one table for all examples and one for each.
std::vector<KernelResult> solve_rotary(
    const LayerKernels& kernels,
    ElementType type,
    c10::Device device) {
  constexpr int64_t kBatch = 2;
  constexpr int64_t kTokens = 3;
  constexpr std::array<int64_t, 2> kHeads = {3, 2};
  std::vector<KernelResult> results;
  for (const bool adjacent : {false, true}) {
    for (const auto& [half, features] :
         {std::array<int64_t, 2>{16, 48}, {3, 7}}) {
      const bool row_tables = features == 7;
      const int64_t table = kTokens * half;
      const at::Tensor cosines =
          example_values(kBatch * table, type, device, 0);
      const at::Tensor sines = example_values(kBatch * table, type, device, 1);
      RotaryHeads heads{
          .type = type,
          .rows = {},
          .cosines = cosines.const_data_ptr(),
          .sines = sines.const_data_ptr(),
          .table_stride = row_tables ? table : 0,
          .batch = kBatch,
          .tokens = kTokens,
          .half = half,
          .features = features,
          .adjacent = adjacent,
          .inverse = row_tables};
      std::vector<at::Tensor> inputs;
      for (size_t i = 0; i < kHeads.size(); ++i) {
        const int64_t row = kHeads[i] * features;
        const int64_t numel = kBatch * kTokens * row;
        inputs.push_back(example_values(numel, type, device, 2 + i));
        const at::Tensor y = at::zeros_like(inputs.back());
        heads.rows[i] = {
            .x = inputs.back().const_data_ptr(),
            .y = y.mutable_data_ptr(),
            .heads = kHeads[i],
            .x_strides = {kTokens * row, features, row},
            .y_strides = {kTokens * row, kTokens * features, features}};
        results.push_back(
            {formatted(
                 "heads of {}, {}",
                 features,
                 adjacent ? "neighbors" : "halves"),
             y,
             rounding_of(type),
             kOfLargest});
      }
      kernels.rotate(heads);
    }
  }
  return results;
}

using SolveLayer = std::vector<KernelResult>(
    const LayerKernels& kernels,
    ElementType type,
    c10::Device device);

constexpr std::array kLayerTypes = {
    ElementType::kFloat32,
    ElementType::kFloat16,
    ElementType::kBFloat16};

/// The trials of kernels for kLayerTypes.
std::array<KernelTrial, 3>* trials_of(const char* name, SolveLayer* solve) {
  const auto trial = [&](const char* type_name, ElementType type) {
    return KernelTrial(
        std::string(name) + " of " + type_name,
        [solve, type](bool by_operators, c10::Device device) {
          return solve(
              by_operators ? operator_layer_kernels() : layer_kernels,
              type,
              device);
        });
  };
  return new std::array<KernelTrial, 3>{
      trial("float32", ElementType::kFloat32),
      trial("float16", ElementType::kFloat16),
      trial("bfloat16", ElementType::kBFloat16)};
}

size_t number_of(ElementType type) {
  return static_cast<size_t>(
      std::find(kLayerTypes.begin(), kLayerTypes.end(), type) -
      kLayerTypes.begin());
}

// Never destroyed: graphs may be freed at exit.

std::array<KernelTrial, 3>& gated_trials() {
  static auto* const trials = trials_of("gated_activation", &solve_gated);
  return *trials;
}

std::array<KernelTrial, 3>& rotary_trials() {
  static auto* const trials = trials_of("rotate_heads", &solve_rotary);
  return *trials;
}

void check_registered(const char* name, bool is_registered) {
  TESSERA_CHECK(
      is_registered,
      "{}: the CUDA backend is not loaded; build with -DTESSERA_CUDA=ON and call tessera::init() first",
      name);
}

const LayerKernels& serving(KernelTrial& trial) {
  return trial.serves() ? layer_kernels : operator_layer_kernels();
}

} // namespace

void register_layer_kernels(const LayerKernels& kernels) {
  layer_kernels = kernels;
}

const LayerKernels& operator_layer_kernels() {
  static constexpr LayerKernels kKernels{
      .gated = &gated_by_operators,
      .gated_backward = &gated_backward_by_operators,
      .rotate = &rotate_by_operators};
  return kKernels;
}

void gated_cuda(const GatedRows& rows) {
  check_registered("gated_activation", layer_kernels.gated != nullptr);
  serving(gated_trials().at(number_of(rows.type))).gated(rows);
}

void gated_backward_cuda(const GatedRows& rows) {
  check_registered("gated_activation", layer_kernels.gated_backward != nullptr);
  serving(gated_trials().at(number_of(rows.type))).gated_backward(rows);
}

void rotate_cuda(const RotaryHeads& heads) {
  check_registered("rotate_heads", layer_kernels.rotate != nullptr);
  serving(rotary_trials().at(number_of(heads.type))).rotate(heads);
}

std::vector<KernelTrial*> layer_kernel_trials() {
  std::vector<KernelTrial*> all;
  for (auto* trials : {&gated_trials(), &rotary_trials()}) {
    for (KernelTrial& trial : *trials) {
      all.push_back(&trial);
    }
  }
  return all;
}

} // namespace tessera::runtime
