// SPDX-License-Identifier: Apache-2.0
// What updates read and write beside float32: moments in bfloat16, stochastic
// rounding, and the look for gradients that are not finite.
#include "runtime/kernels/adamw_reference.h"
#include "runtime/kernels/update_reference.h"
#include "support/power_sums.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace tessera::runtime::update_formats_test {

namespace {

LowPrecision format_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? LowPrecision::kBFloat16
         : dtype == at::kHalf   ? LowPrecision::kFloat16
                                : LowPrecision::kNone;
}

/// What all that may differ between two updates has in common.
struct Formats {
  at::ScalarType grad;
  at::ScalarType low;
  bool stochastic;
};

constexpr Formats kFormats[] = {
    {at::kFloat, at::kFloat, false},
    {at::kBFloat16, at::kBFloat16, false},
    {at::kHalf, at::kHalf, false},
    {at::kFloat, at::kBFloat16, true},
    {at::kBFloat16, at::kBFloat16, true}};

/// Moments in bfloat16 that begin `offset` elements into an allocation.
struct NarrowState {
  at::Tensor master, grad, moment, moment_sq, moment_diff, previous_grad, low;

  NarrowState(int64_t numel, int64_t offset, const Formats& formats) {
    torch::manual_seed(numel * 31 + offset);
    const auto view = [&](const at::Tensor& values) {
      return at::zeros({numel + offset}, values.options())
          .narrow(0, offset, numel)
          .copy_(values);
    };
    master = view(at::randn({numel}));
    grad = view(random_spread(numel, at::kFloat, 8).to(formats.grad));
    moment = view(at::randn({numel}).to(at::kBFloat16));
    moment_sq = view(at::randn({numel}).square().to(at::kBFloat16));
    moment_diff = view(at::randn({numel}).to(at::kBFloat16));
    previous_grad = view(at::randn({numel}).to(at::kBFloat16));
    low = view(at::zeros({numel}, formats.low));
  }

  template <typename Shard, typename Step>
  Shard shard(const Step& step) const {
    Shard shard{
        .master = master.mutable_data_ptr<float>(),
        .grad = grad.const_data_ptr(),
        .grad_format = format_of(grad.scalar_type()),
        .states =
            {moment.mutable_data_ptr(),
             moment_sq.mutable_data_ptr(),
             moment_diff.mutable_data_ptr(),
             previous_grad.mutable_data_ptr()},
        .state_format = LowPrecision::kBFloat16,
        .rounding = RoundingKey(step.rounding),
        .numel = master.numel(),
        .rule = typename Shard::Rule(step)};
    if (low.scalar_type() != at::kFloat) {
      shard.low_precision = static_cast<uint16_t*>(low.mutable_data_ptr());
      shard.low_precision_format = format_of(low.scalar_type());
    }
    return shard;
  }

  void update(Isa isa, bool stochastic) const {
    const StochasticRounding rounding{stochastic, 17, 1'000'003};
    AdamWStep adam{.step = 3, .grad_scale = 0.7, .rounding = rounding};
    run_cpu_updates({update_of(isa, shard<ShardOf<float, AdamWStep>>(adam))});
    LionStep lion{.weight_decay = 0.1, .rounding = rounding};
    run_cpu_updates({update_of(isa, shard<ShardOf<float, LionStep>>(lion))});
    SgdStep sgd{.momentum = 0.9, .step = 2, .rounding = rounding};
    run_cpu_updates({update_of(isa, shard<ShardOf<float, SgdStep>>(sgd))});
    AdanStep adan{.weight_decay = 0.1, .step = 2, .rounding = rounding};
    run_cpu_updates({update_of(isa, shard<ShardOf<float, AdanStep>>(adan))});
    const auto lamb = shard<LambShard<float>>(adam);
    lamb_moments_cpu(isa, lamb);
    lamb_weights_cpu(isa, lamb);
  }

  bool equals(const NarrowState& other) const {
    return same_bits(master, other.master) && same_bits(moment, other.moment) &&
           same_bits(moment_sq, other.moment_sq) &&
           same_bits(moment_diff, other.moment_diff) &&
           same_bits(previous_grad, other.previous_grad) &&
           same_bits(low, other.low);
  }
};

} // namespace

TEST(NarrowMoments, HaveTheSameBitsOnEveryInstructionSet) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_available(isa)) {
      GTEST_SKIP() << "no instruction set " << static_cast<int>(isa);
    }
    for (const Formats& formats : kFormats) {
      for (int64_t numel = 0; numel <= 131; ++numel) {
        const int64_t size = numel <= 129 ? numel : numel * 701;
        const NarrowState portable(size, numel % 5, formats);
        const NarrowState vector(size, numel % 5, formats);
        portable.update(Isa::kPortable, formats.stochastic);
        vector.update(isa, formats.stochastic);
        ASSERT_TRUE(vector.equals(portable)) << size;
      }
    }
  }
}

// The weights see the new moments as they are, the next step sees them rounded.
TEST(NarrowMoments, AreTheExactOnesRounded) {
  for (const int64_t numel : {1, 16, 33, 4099, 70'001}) {
    const UpdateTensors start = random_tensors(numel, at::kFloat);
    for_each_update([&](const auto& update, const std::string& name) {
      UpdateTensors narrow = converted(start, at::kFloat);
      UpdateTensors wide = converted(start, at::kFloat);
      for (size_t i = 0; i < UpdateTensors::kStates; ++i) {
        *narrow.states()[i] = start.states()[i]->to(at::kBFloat16);
        *wide.states()[i] = narrow.states()[i]->to(at::kFloat);
      }
      update(narrow);
      update(wide);
      for (size_t i = 0; i < UpdateTensors::kStates; ++i) {
        EXPECT_TRUE(
            same_bits(*narrow.states()[i], wide.states()[i]->to(at::kBFloat16)))
            << name << ", state " << i;
      }
      if (name != "LAMB") { // whose weights take the moments that were kept
        EXPECT_TRUE(same_bits(narrow.master, wide.master)) << name;
      }
    });
  }
}

TEST(NarrowMoments, OfOneDtypeOnly) {
  UpdateTensors tensors = random_tensors(8, at::kFloat);
  tensors.moment = tensors.moment.to(at::kBFloat16);
  const UpdateSegment segment{tensors, AdamWStep{}};
  EXPECT_THROW(update_segments_({&segment, 1}), Error);
  tensors.moment_sq = tensors.moment_sq.to(at::kHalf);
  tensors.moment = tensors.moment.to(at::kHalf);
  const UpdateSegment half{tensors, AdamWStep{}};
  EXPECT_THROW(update_segments_({&half, 1}), Error);
  for (const size_t other : {2, 3}) {
    UpdateTensors mixed = random_tensors(8, at::kFloat);
    *mixed.states()[other] = mixed.states()[other]->to(at::kBFloat16);
    const UpdateSegment adan{mixed, AdanStep{}};
    EXPECT_THROW(update_segments_({&adan, 1}), Error);
  }
}

namespace {

/// The weights rounded by an update that leaves them as they are.
at::Tensor rounded(
    const at::Tensor& values,
    const StochasticRounding& rounding) {
  UpdateTensors tensors = random_tensors(values.numel(), at::kFloat);
  tensors.master = values;
  tensors.low_precision = at::zeros_like(values, at::kBFloat16);
  const UpdateSegment segment{
      tensors, AdamWStep{.lr = 0, .weight_decay = 0, .rounding = rounding}};
  update_segments_({&segment, 1});
  return tensors.low_precision;
}

} // namespace

TEST(StochasticRounding, IsOneOfTheNeighboursAndRightInTheMean) {
  constexpr int64_t kNumel = 512;
  constexpr int kSeeds = 4000;
  torch::manual_seed(1);
  const at::Tensor values = at::randn({kNumel});
  const at::Tensor down =
      values.view(at::kInt).bitwise_and(-65536).view(at::kFloat);
  const at::Tensor up =
      (down.view(at::kInt) + 65536).view(at::kFloat); // away from zero
  at::Tensor mean = at::zeros({kNumel}, at::kDouble);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const at::Tensor found = rounded(values, {true, seed}).to(at::kFloat);
    ASSERT_TRUE(found.eq(down).logical_or(found.eq(up)).all().item<bool>());
    mean += found;
  }
  mean /= kSeeds;
  // A coin of two sides one unit apart has a standard deviation of at most half
  // a unit; the mean of 4000 of 0.0079, and none of 512 means is further off
  // than five of those.
  const at::Tensor unit = (up - down).abs().to(at::kDouble);
  const at::Tensor off = (mean - values.to(at::kDouble)).abs() / unit;
  EXPECT_LT(off.max().item<double>(), 5 * 0.0079);
  // And over elements, whose noise must be independent: 512 times as many.
  const at::Tensor signed_off = (mean - values.to(at::kDouble)) / (up - down);
  EXPECT_LT(std::abs(signed_off.mean().item<double>()), 5 * 0.0079 / 22);
}

TEST(StochasticRounding, LeavesExactAndSpecialValuesAlone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor exact = torch::tensor(
      {0.0f, -0.0f, 1.0f, -1.5f, kInfinity, -kInfinity, 1e-40f, NAN});
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const at::Tensor found = rounded(exact, {true, seed});
    EXPECT_TRUE(same_bits(
        found.narrow(0, 0, 6), exact.narrow(0, 0, 6).to(at::kBFloat16)));
    EXPECT_NEAR(found[6].item<float>(), 1e-40f, 1e-40f);
    EXPECT_TRUE(std::isnan(found[7].item<float>()));
  }
}

TEST(StochasticRounding, DoesNotDependOnWhereAShardBegins) {
  constexpr int64_t kNumel = 100'003;
  torch::manual_seed(2);
  const at::Tensor values = at::randn({kNumel});
  // Beyond 2^32 the numbers begin again, in mid-vector too.
  for (const uint64_t first : {uint64_t{0}, (uint64_t{1} << 32) - 7}) {
    const at::Tensor full = rounded(values, {true, 9, first});
    for (const int64_t cut : {1, 15, 777, 65'536, 99'999}) {
      const at::Tensor parts = at::cat(
          {rounded(values.narrow(0, 0, cut).clone(), {true, 9, first}),
           rounded(
               values.narrow(0, cut, kNumel - cut).clone(),
               {true, 9, first + static_cast<uint64_t>(cut)})});
      EXPECT_TRUE(same_bits(parts, full)) << cut;
    }
  }
  EXPECT_FALSE(
      same_bits(rounded(values, {true, 9}), rounded(values, {true, 10})));
}

// With beta2 of 0.999 the moment grows by less than half a unit of bfloat16.
TEST(StochasticRounding, KeepsASecondMomentMoving) {
  constexpr int64_t kNumel = 4096;
  for (const bool stochastic : {false, true}) {
    UpdateTensors tensors = random_tensors(kNumel, at::kFloat);
    tensors.grad.fill_(1);
    tensors.moment = at::zeros({kNumel}, at::kBFloat16);
    tensors.moment_sq = at::full({kNumel}, 0.5, at::kBFloat16);
    for (int64_t step = 1; step <= 1000; ++step) {
      const UpdateSegment segment{
          tensors,
          AdamWStep{
              .step = step,
              .rounding = {stochastic, static_cast<uint64_t>(step)}}};
      update_segments_({&segment, 1});
    }
    const double mean = tensors.moment_sq.to(at::kDouble).mean().item<double>();
    // 1 - 0.5 * 0.999^1000 = 0.816; the mean of 4096 walks is within 0.001.
    EXPECT_NEAR(mean, stochastic ? 0.816 : 0.5, 0.005);
  }
}

TEST(StochasticRounding, IsNotForFloat16) {
  UpdateTensors tensors = random_tensors(8, at::kFloat);
  tensors.low_precision = at::zeros({8}, at::kHalf);
  const UpdateSegment segment{tensors, AdamWStep{.rounding = {true, 1}}};
  EXPECT_THROW(update_segments_({&segment, 1}), Error);
}

class FiniteGradients : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void expect_seen(const UpdateTensors& t, bool finite) {
    const UpdateSegment adam{t, AdamWStep{}};
    const UpdateSegment sgd{t, SgdStep{}};
    const UpdateSegment lion{t, LionStep{}};
    const UpdateSegment adan{t, AdanStep{}};
    const LambSegment lamb{t, {}, {}};
    EXPECT_EQ(update_segments_({&adan, 1}), finite);
    EXPECT_EQ(update_segments_({&adam, 1}), finite);
    EXPECT_EQ(update_segments_({&sgd, 1}), finite);
    EXPECT_EQ(update_segments_({&lion, 1}), finite);
    EXPECT_EQ(
        lamb_moments_({&lamb, 1}, at::empty({1, 2}, at::kDouble)), finite);
    for (const double p : {1.0, 2.0, HUGE_VAL}) {
      EXPECT_EQ(std::isfinite(power_sums({t.grad}, p).front()), finite) << p;
    }
  }
};

TEST_P(FiniteGradients, AreToldFromOthersAtEveryPosition) {
  for (const int64_t numel : {1, 15, 16, 17, 40, 33'333, 200'003}) {
    UpdateTensors tensors = random_tensors(numel, at::kFloat);
    tensors.grad = tensors.grad.to(GetParam());
    // The largest values of the format are finite, and denormals too.
    tensors.grad[0] = GetParam() == at::kHalf ? 65504.0f : 3e38f;
    tensors.grad[numel / 2] = 1e-7f;
    expect_seen(tensors, true);
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      for (const int64_t at : {int64_t{0}, numel / 3, numel - 1}) {
        UpdateTensors broken = converted(tensors, at::kFloat);
        broken.grad = tensors.grad.clone();
        broken.grad[at] = bad;
        expect_seen(broken, false);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    FiniteGradients,
    ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

/// Clones of the master and the state; the rest is shared.
UpdateTensors with_own_state(const UpdateTensors& tensors) {
  UpdateTensors local = tensors;
  local.master = tensors.master.clone();
  for (at::Tensor* state : local.states()) {
    *state = state->clone();
  }
  return local;
}

TEST(UpdatesOfCopies, HaveTheBitsOfThoseInPlaceAndLeaveTheOldValues) {
  for (const int64_t numel : {1, 1000, 4097, 200'003}) {
    const UpdateTensors old = random_tensors(numel, at::kFloat);
    const UpdateTensors kept = with_own_state(old);
    UpdateTensors in_place = with_own_state(old);
    UpdateTensors copy = with_own_state(old);
    in_place.low_precision = at::empty({numel}, at::kBFloat16);
    copy.low_precision = at::empty({numel}, at::kBFloat16);
    copy.master.fill_(NAN);
    for (at::Tensor* state : copy.states()) {
      state->fill_(NAN);
    }
    const UpdateSegment adan{in_place, AdanStep{.step = 2}};
    const UpdateSegment adan_copy{copy, AdanStep{.step = 2}};
    EXPECT_TRUE(update_segments_({&adan, 1}));
    EXPECT_TRUE(update_segments_({&adan_copy, 1}, {&old, 1}));
    for (const auto& [a, b] :
         {std::pair(copy, in_place), std::pair(old, kept)}) {
      EXPECT_TRUE(same_bits(a.master, b.master));
      for (size_t i = 0; i < UpdateTensors::kStates; ++i) {
        EXPECT_TRUE(same_bits(*a.states()[i], *b.states()[i])) << i;
      }
    }
    EXPECT_TRUE(same_bits(copy.low_precision, in_place.low_precision));
  }
  const UpdateTensors small = random_tensors(3, at::kFloat);
  const UpdateTensors large = random_tensors(4, at::kFloat);
  const UpdateSegment lion{small, LionStep{}};
  EXPECT_THROW(update_segments_({&lion, 1}, {&large, 1}), Error);
}

} // namespace tessera::runtime::update_formats_test
