// SPDX-License-Identifier: Apache-2.0
// SGD, Lion, LAMB and Adan on the CPU: against float64, over the instruction
// sets, and with gradients and weights of low precision.
#include "runtime/kernels/adamw_reference.h"
#include "runtime/kernels/update_reference.h"
#include "support/expect_error.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::runtime::update_segments_test {

namespace {

/// Odd, below and above a vector, a block and a thread's share.
constexpr int64_t kSizes[] = {1, 7, 16, 33, 1023, 1025, 70'001};

std::vector<Isa> isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_available(isa)) {
      found.push_back(isa);
    }
  }
  return found;
}

template <typename Step>
ShardOf<float, Step> shard_of(const UpdateTensors& t, const Step& step) {
  return detail::make_shard<ShardOf<float, Step>>(
      detail::UpdateChecks("update_segments_test"), t, step);
}

/// The update in float64 and its relative distance from float32's.
template <typename Update>
void expect_near_float64(const Update& update, double tolerance) {
  for (const int64_t numel : kSizes) {
    UpdateTensors single = random_tensors(numel, at::kFloat);
    UpdateTensors twice = converted(single, at::kDouble);
    for (int64_t step = 1; step <= 3; ++step) {
      single.grad.copy_(at::randn({numel}));
      twice.grad.copy_(single.grad);
      update(single, step);
      update(twice, step);
    }
    const auto off = (single.master.to(at::kDouble) - twice.master).abs().max();
    EXPECT_LE(off.item<double>(), tolerance) << numel;
  }
}

} // namespace

// A few roundings of values around 1; Lion's sign may differ where its argument
// is within them of zero, which random numbers are not.
TEST(UpdateSegments, SgdAndLionAreNearFloat64) {
  expect_near_float64(
      [](const UpdateTensors& t, int64_t step) {
        const UpdateSegment segment{
            t,
            SgdStep{
                .lr = 0.1,
                .momentum = 0.9,
                .dampening = 0.1,
                .weight_decay = 0.01,
                .nesterov = false,
                .step = step,
                .grad_scale = 0.5}};
        update_segments_({&segment, 1});
      },
      1e-5);
  expect_near_float64(
      [](const UpdateTensors& t, int64_t) {
        const UpdateSegment segment{
            t, LionStep{.lr = 0.01, .weight_decay = 0.1}};
        update_segments_({&segment, 1});
      },
      1e-5);
}

// Steps from the second on are exact in engine/optim/reference_test.cpp; here,
// what was in previous_grad before the first step must not count.
TEST(UpdateSegments, AdanIsNearFloat64AndItsFirstStepHasNoDifference) {
  for (const bool no_prox : {false, true}) {
    expect_near_float64(
        [&](const UpdateTensors& t, int64_t step) {
          const UpdateSegment segment{
              t,
              AdanStep{
                  .lr = 0.01,
                  .weight_decay = 0.1,
                  .no_prox = no_prox,
                  .step = step,
                  .grad_scale = 0.5}};
          update_segments_({&segment, 1});
        },
        1e-5);
  }
  const UpdateTensors t = random_tensors(1027, at::kDouble);
  const UpdateTensors old = converted(t, at::kDouble);
  const UpdateSegment segment{t, AdanStep{.grad_scale = 0.5}};
  update_segments_({&segment, 1});
  EXPECT_TRUE(torch::equal(t.previous_grad, old.grad * 0.5));
  EXPECT_TRUE(at::allclose(t.moment_diff, old.moment_diff * 0.92, 1e-14));
  EXPECT_TRUE(at::allclose(
      t.moment_sq,
      old.moment_sq * 0.99 + 0.01 * (old.grad * 0.5).square(),
      1e-14));
}

TEST(UpdateSegments, AdanRefusesHyperparametersAndTensorsThatDoNotFit) {
  const UpdateTensors t = random_tensors(8, at::kFloat);
  const auto refused = [&](const AdanStep& step,
                           std::initializer_list<const char*> parts) {
    expect_error(
        [&] {
          const UpdateSegment segment{t, step};
          update_segments_({&segment, 1});
        },
        parts);
  };
  refused({.lr = NAN}, {"adan_: lr is nan"});
  refused({.beta1 = 1}, {"beta1 is 1"});
  refused({.beta2 = -0.5}, {"beta2 is -0.5"});
  refused({.beta3 = 1.5}, {"beta3 is 1.5"});
  refused({.eps = -1}, {"eps is -1"});
  refused({.weight_decay = INFINITY}, {"weight_decay is inf"});
  refused({.step = 0}, {"step is 0"});
  for (const auto& [state, name] :
       {std::pair(2, "exp_avg_diff"), std::pair(3, "previous_grad")}) {
    UpdateTensors other = t;
    *other.states()[static_cast<size_t>(state)] = at::zeros({7});
    const UpdateSegment segment{other, AdanStep{}};
    expect_error(
        [&] {
          update_segments_({&segment, 1});
        },
        {name, "has shape [7]"});
  }
}

TEST(UpdateSegments, LambIsNearFloat64InWeightsAndSums) {
  for (const int64_t numel : kSizes) {
    UpdateTensors single = random_tensors(numel, at::kFloat);
    UpdateTensors twice = converted(single, at::kDouble);
    const at::Tensor sums = at::empty({2, 2}, at::kDouble);
    int i = 0;
    for (const UpdateTensors& t : {single, twice}) {
      AdamWStep step;
      step.lr = 0.01;
      step.weight_decay = 0.1;
      const LambSegment segment{t, step, {}};
      lamb_moments_({&segment, 1}, sums.narrow(0, i++, 1));
      lamb_weights_({&segment, 1});
    }
    EXPECT_TRUE(at::allclose(sums[0], sums[1], 2e-6)) << numel;
    const auto off = (single.master.to(at::kDouble) - twice.master).abs().max();
    EXPECT_LE(off.item<double>(), 1e-5) << numel;
  }
}

TEST(UpdateSegments, HaveTheSameBitsOnEveryInstructionSet) {
  for (const int64_t numel : kSizes) {
    const UpdateTensors start = random_tensors(numel, at::kFloat);
    std::vector<UpdateTensors> results;
    for (const Isa isa : isas()) {
      UpdateTensors t = converted(start, at::kFloat);
      run_cpu_updates({update_of(
          isa,
          shard_of(
              t, SgdStep{.momentum = 0.9, .weight_decay = 0.1, .step = 2}))});
      run_cpu_updates(
          {update_of(isa, shard_of(t, LionStep{.weight_decay = 0.1}))});
      for (const int64_t step : {1, 2}) {
        run_cpu_updates({update_of(
            isa,
            shard_of(
                t,
                AdanStep{
                    .weight_decay = 0.1,
                    .no_prox = step == 2,
                    .step = step,
                    .grad_scale = 0.7}))});
      }
      results.push_back(t);
    }
    for (const UpdateTensors& result : results) {
      EXPECT_TRUE(same_bits(result.master, results[0].master)) << numel;
      for (size_t i = 0; i < UpdateTensors::kStates; ++i) {
        EXPECT_TRUE(same_bits(*result.states()[i], *results[0].states()[i]))
            << numel << ", state " << i;
      }
    }
  }
}

TEST(UpdateSegments, LionsSignOfZeroIsZeroAndOfNanIsNan) {
  for (const Isa isa : isas()) {
    UpdateTensors t = random_tensors(3, at::kFloat);
    t.master.fill_(1);
    t.moment.zero_();
    t.grad.copy_(at::tensor({0.0f, -0.0f, NAN}));
    run_cpu_updates({update_of(isa, shard_of(t, LionStep{.lr = 0.5}))});
    EXPECT_EQ(t.master[0].item<float>(), 1);
    EXPECT_EQ(t.master[1].item<float>(), 1);
    EXPECT_TRUE(std::isnan(t.master[2].item<float>()));
  }
}

class UpdateRunsFormats : public ::testing::TestWithParam<at::ScalarType> {};

// 16-bit gradients are widened exactly, and the weights' copy is rounded to
// nearest even: as if both were done apart.
TEST_P(UpdateRunsFormats, EqualSeparateConversions) {
  for (const int64_t numel : kSizes) {
    const UpdateTensors start = random_tensors(numel, at::kFloat);
    for_each_update([&](const auto& update, const char* name) {
      UpdateTensors narrow = converted(start, at::kFloat);
      narrow.grad = start.grad.to(GetParam());
      narrow.low_precision = at::zeros({numel}, GetParam());
      UpdateTensors wide = converted(start, at::kFloat);
      wide.grad = narrow.grad.to(at::kFloat);
      update(narrow);
      update(wide);
      EXPECT_TRUE(same_bits(narrow.master, wide.master)) << name;
      EXPECT_TRUE(
          torch::equal(narrow.low_precision, wide.master.to(GetParam())))
          << name;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    UpdateRunsFormats,
    ::testing::Values(at::kBFloat16, at::kHalf));

TEST(UpdateSegments, LambsFactorMultipliesTheLearningRate) {
  const UpdateTensors t = random_tensors(1027, at::kFloat);
  const UpdateTensors scaled = converted(t, at::Device(at::kCPU));
  LambSegment segment{t, {.lr = 0.01}, at::scalar_tensor(0.3, at::kDouble)};
  lamb_weights_({&segment, 1});
  const LambSegment expected{scaled, {.lr = 0.01 * 0.3}, {}};
  lamb_weights_({&expected, 1});
  EXPECT_TRUE(same_bits(t.master, scaled.master));
  segment.lr_factor = at::scalar_tensor(0.3F);
  expect_error(
      [&] {
        lamb_weights_({&segment, 1});
      },
      {"lr_factor", "one Double"});
}

TEST(UpdateSegments, AFactorInATensorMultipliesTheGradient) {
  for_each_update([](const auto& update, const char* name) {
    SCOPED_TRACE(name);
    UpdateTensors t = random_tensors(1027, at::kFloat);
    UpdateTensors scaled = converted(t, at::Device(at::kCPU));
    t.grad_factor = at::scalar_tensor(0.25, at::kDouble); // exact
    scaled.grad.mul_(0.25);
    update(t);
    update(scaled);
    EXPECT_TRUE(same_bits(t.master, scaled.master));
    EXPECT_TRUE(same_bits(t.moment, scaled.moment));
    t.grad_factor = at::scalar_tensor(0.25F);
    expect_error([&] { update(t); }, {"grad_factor", "one Double"});
  });
}

TEST(UpdateSegments, ManyRunsAreAsOneByOne) {
  std::vector<UpdateTensors> together;
  std::vector<UpdateTensors> alone;
  std::vector<UpdateSegment> segments;
  for (const int64_t numel : kSizes) {
    together.push_back(random_tensors(numel, at::kFloat));
    alone.push_back(converted(together.back(), at::kFloat));
    const SgdStep step{
        .lr = 0.01 * static_cast<double>(numel), .momentum = 0.5};
    segments.push_back({together.back(), step});
    const UpdateSegment local{alone.back(), step};
    update_segments_({&local, 1});
  }
  update_segments_(segments);
  for (size_t i = 0; i < together.size(); ++i) {
    EXPECT_TRUE(same_bits(together[i].master, alone[i].master));
  }
}

} // namespace tessera::runtime::update_segments_test
