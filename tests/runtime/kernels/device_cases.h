// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of a device against those of the CPU: the cases of the GPU tests
// and of cuda_shim_test. A `Device` has PublicKernels' functions, and
//   copy(tensor, offset): the tensor, `offset` elements into an allocation
//   many_turns(): elements for which a grid takes several turns

#include "runtime/kernels/adamw_reference.h"
#include "runtime/kernels/update_reference.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera::device_cases {

inline constexpr std::array kMasterTypes = {at::kFloat, at::kDouble};

/// The fields of UpdateTensors, to move one of them.
enum Field {
  kMaster,
  kGrad,
  kMoment,
  kMomentSq,
  kMomentDiff,
  kPreviousGrad,
  kLow,
  kFields
};

/// Copies on the device. Field `moved` begins one element into its allocation,
/// where no pack of elements is aligned; kFields: none.
template <typename Device>
runtime::UpdateTensors on_device(
    const Device& device,
    const runtime::UpdateTensors& t,
    int moved = kFields) {
  const auto copy = [&](const at::Tensor& tensor, int field) {
    return tensor.defined() ? device.copy(tensor, field == moved ? 1 : 0)
                            : at::Tensor();
  };
  return {
      copy(t.master, kMaster),
      copy(t.grad, kGrad),
      copy(t.moment, kMoment),
      copy(t.moment_sq, kMomentSq),
      copy(t.low_precision, kLow),
      t.grad_factor.defined() ? device.copy(t.grad_factor.view(1), 0)
                              : at::Tensor(),
      copy(t.moment_diff, kMomentDiff),
      copy(t.previous_grad, kPreviousGrad)};
}

/// Equal bits in all that an update writes; NaNs as such.
inline void expect_same(
    const runtime::UpdateTensors& device,
    const runtime::UpdateTensors& cpu) {
  EXPECT_TRUE(same_bits_or_nan(device.master.cpu(), cpu.master));
  for (size_t i = 0; i < runtime::UpdateTensors::kStates; ++i) {
    const at::Tensor& state = *cpu.states()[i];
    EXPECT_TRUE(
        !state.defined() || same_bits_or_nan(device.states()[i]->cpu(), state))
        << "state " << i;
  }
  if (cpu.low_precision.defined()) {
    EXPECT_TRUE(
        same_bits_or_nan(device.low_precision.cpu(), cpu.low_precision));
  }
}

/// Random tensors with gradients of `format`, and with moments and a
/// low_precision output of it if kernels have those.
inline runtime::UpdateTensors tensors_of(
    int64_t numel,
    at::ScalarType dtype,
    at::ScalarType format) {
  runtime::UpdateTensors t = random_tensors(numel, dtype);
  t.grad = t.grad.to(format);
  if (format == at::kBFloat16) {
    for (at::Tensor* state : t.states()) {
      *state = state->to(format);
    }
  }
  if (format != dtype) {
    t.low_precision = at::zeros({numel}, format);
  }
  return t;
}

/// One update by every optimizer.
template <typename Device>
void check_update(
    const Device& device,
    const runtime::UpdateTensors& start,
    int moved = kFields) {
  std::vector<runtime::UpdateTensors> expected;
  for_each_update([&](const auto& update, const char*) {
    expected.push_back(converted(start, at::Device(at::kCPU)));
    update(expected.back());
  });
  size_t i = 0;
  for_each_update(
      [&](const auto& update, const char* name) {
        SCOPED_TRACE(
            std::string(name) + " of " + std::to_string(start.master.numel()) +
            ", moved field " + std::to_string(moved));
        const runtime::UpdateTensors t = on_device(device, start, moved);
        update(t);
        expect_same(t, expected[i++]);
      },
      device);
}

/// Steps of AdamW one after the other, at sizes around those of packs and
/// blocks.
template <typename Device>
void check_adamw_steps(const Device& device, at::ScalarType dtype) {
  for (const at::ScalarType format : {at::kBFloat16, at::kHalf}) {
    for (const int64_t numel :
         {int64_t{0},
          int64_t{1},
          int64_t{3},
          int64_t{4},
          int64_t{5},
          int64_t{255},
          int64_t{1024},
          int64_t{1027},
          Device::many_turns()}) {
      SCOPED_TRACE("numel " + std::to_string(numel));
      torch::manual_seed(numel);
      AdamWState cpu(numel, 0, dtype);
      AdamWState other =
          cpu.map([&](const at::Tensor& t) { return device.copy(t, 0); });
      const at::Tensor cpu_low = at::zeros({numel}, format);
      const at::Tensor low = device.copy(cpu_low, 0);
      runtime::AdamWStep step{.grad_scale = 0.7};
      for (step.step = 1; step.step <= 5; ++step.step) {
        cpu.grad.copy_(random_spread(numel, dtype));
        other.grad.copy_(cpu.grad);
        const runtime::UpdateSegment segment{
            {cpu.master, cpu.grad, cpu.exp_avg, cpu.exp_avg_sq, cpu_low}, step};
        runtime::update_segments_({&segment, 1});
        const runtime::UpdateSegment local{
            {other.master, other.grad, other.exp_avg, other.exp_avg_sq, low},
            step};
        device.update(std::span<const runtime::UpdateSegment>(&local, 1));
        expect_same(local.tensors, segment.tensors);
      }
    }
  }
}

/// All optimizers and formats, at sizes with and without a tail, with any array
/// not aligned for packs.
template <typename Device>
void check_all_updates(const Device& device, at::ScalarType dtype) {
  for (const at::ScalarType format : {at::kBFloat16, at::kHalf, dtype}) {
    const auto tensors = [&](int64_t numel) {
      return tensors_of(numel, dtype, format);
    };
    for (const int64_t numel :
         {int64_t{1},
          int64_t{3},
          int64_t{5},
          int64_t{255},
          int64_t{1027},
          Device::many_turns()}) {
      check_update(device, tensors(numel));
    }
    for (int moved = 0; moved < kFields; ++moved) {
      check_update(device, tensors(1027), moved);
    }
    runtime::UpdateTensors clipped = tensors(1027);
    clipped.grad_factor = at::scalar_tensor(0.37, at::kDouble);
    check_update(device, clipped);
  }
}

/// Gradients and weights that are not finite or overflow a format.
template <typename Device>
void check_extremes(const Device& device, at::ScalarType dtype) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values = {
      0.,
      -0.,
      1.,
      -1.,
      kInf,
      -kInf,
      kNan,
      65519.,
      65520.,
      -7e4,
      1e30,
      -3e38,
      3.4e38,
      1e-8,
      6e-5,
      1e-40};
  const auto n = static_cast<int64_t>(values.size());
  const at::Tensor all = at::tensor(values, at::kDouble);
  for (const at::ScalarType format : {at::kBFloat16, at::kHalf, dtype}) {
    // Every pair of a weight and a gradient.
    runtime::UpdateTensors t = tensors_of(n * n, dtype, format);
    t.master.copy_(all.repeat({n}));
    t.grad.copy_(all.repeat_interleave(n));
    check_update(device, t);
    for_each_update(
        [&](const auto& update, const char* name) {
          const runtime::UpdateTensors local = on_device(device, t);
          update(local);
          // Nothing hides them from the sums of powers that look for them.
          const at::Tensor kept = t.master.isfinite() & t.grad.isnan();
          EXPECT_TRUE(local.master.cpu()
                          .isnan()
                          .masked_select(kept)
                          .all()
                          .template item<bool>())
              << name;
        },
        device);
  }
}

/// Stochastic rounding of all state and of the weights' copy.
template <typename Device>
void check_stochastic_rounding(const Device& device, at::ScalarType dtype) {
  for (const int64_t numel :
       {int64_t{1}, int64_t{3}, int64_t{1027}, Device::many_turns()}) {
    const runtime::UpdateTensors cpu = tensors_of(numel, dtype, at::kBFloat16);
    // The NaN of CUDA's arithmetic, to whose bits nothing can be added.
    cpu.master.view(dtype == at::kFloat ? at::kInt : at::kLong)
        .slice(0, 0, std::nullopt, 7)
        .fill_(
            dtype == at::kFloat ? std::numeric_limits<int32_t>::max()
                                : std::numeric_limits<int64_t>::max());
    const runtime::UpdateTensors local = on_device(device, cpu);
    const runtime::UpdateSegment cpu_adan{
        converted(cpu, at::Device(at::kCPU)),
        runtime::AdanStep{.step = 3, .rounding = {true, 5, 1'000'003}}};
    runtime::update_segments_({&cpu_adan, 1});
    const runtime::UpdateSegment adan{on_device(device, cpu), cpu_adan.step};
    device.update(std::span<const runtime::UpdateSegment>(&adan, 1));
    expect_same(adan.tensors, cpu_adan.tensors);
    const runtime::AdamWStep step{.step = 3, .rounding = {true, 5, 1'000'003}};
    const runtime::UpdateSegment cpu_run{cpu, step};
    runtime::update_segments_({&cpu_run, 1});
    const runtime::UpdateSegment segment{local, step};
    device.update(std::span<const runtime::UpdateSegment>(&segment, 1));
    expect_same(local, cpu);
  }
}

/// More runs than one launch takes, of all alignments and some of them empty,
/// each with a step of its own.
template <typename Device>
void check_many_runs(const Device& device, at::ScalarType dtype) {
  const runtime::UpdateTensors cpu = random_tensors(20'000, dtype);
  const runtime::UpdateTensors local = on_device(device, cpu);
  const auto runs_of = [](const runtime::UpdateTensors& t) {
    std::vector<runtime::UpdateSegment> segments;
    int64_t offset = 0;
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t numel = i % 13;
      segments.push_back(
          {{t.master.narrow(0, offset, numel),
            t.grad.narrow(0, offset, numel),
            t.moment.narrow(0, offset, numel),
            {},
            {}},
           runtime::SgdStep{
               .lr = 0.01 * static_cast<double>(i), .momentum = 0.9}});
      offset += numel + 1;
    }
    return segments;
  };
  runtime::update_segments_(runs_of(cpu));
  const auto segments = runs_of(local);
  device.update(std::span<const runtime::UpdateSegment>(segments));
  expect_same(local, cpu);
}

inline double sum_of_squares(const at::Tensor& t) {
  return t.square().sum().item<double>();
}

/// LAMB's sums of squares, of more runs than one launch takes, in float64.
template <typename Device>
void check_lamb_sums(const Device& device, at::ScalarType dtype) {
  const runtime::AdamWStep step{.step = 3, .grad_scale = 0.7};
  std::vector<runtime::LambSegment> segments;
  constexpr size_t kRuns = 40;
  for (size_t i = 0; i < kRuns; ++i) {
    const int64_t numel =
        i == 17 ? 100'003 : static_cast<int64_t>(1 + 31 * i % 257);
    // The direction is that of the moments as they are stored.
    const auto format = i % 2 == 0 ? dtype : at::kBFloat16;
    segments.push_back(
        {on_device(device, tensors_of(numel, dtype, format)), step, {}});
  }
  const at::Tensor sums = at::empty(
      {static_cast<int64_t>(kRuns), 2},
      segments[0].tensors.master.options().dtype(at::kDouble));
  device.lamb_moments(segments, sums);
  const at::Tensor found = sums.cpu();
  for (size_t i = 0; i < segments.size(); ++i) {
    const runtime::UpdateTensors& t = segments[i].tensors;
    const auto wide = [](const at::Tensor& x) {
      return x.cpu().to(at::kDouble);
    };
    const at::Tensor direction =
        wide(t.moment) / (1 - std::pow(step.beta1, 3)) /
            (wide(t.moment_sq).sqrt() / std::sqrt(1 - std::pow(step.beta2, 3)) +
             step.eps) +
        step.weight_decay * wide(t.master);
    const double weights = sum_of_squares(wide(t.master));
    const double squares = sum_of_squares(direction);
    // In float32, a square has the roundings of some eight operations.
    const double tolerance = dtype == at::kFloat ? 1e-6 : 1e-14;
    const double* local = found.const_data_ptr<double>() + 2 * i;
    EXPECT_NEAR(local[0], weights, tolerance * weights) << i;
    EXPECT_NEAR(local[1], squares, tolerance * squares) << i;
  }
}

} // namespace tessera::device_cases
