// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels, compiled as C++ (support/cuda_shim): their indices and
// arithmetic are those of the CPU kernels and of LibTorch's operators.
#include "runtime/kernels/device_cases.h"
#include "runtime/kernels/pack_reference.h"
#include "runtime/kernels/table_device.h"
#include "support/cuda_shim/guarded_memory.h"
#include "support/cuda_shim/kernel_run.h"
#include "support/cuda_shim/vast_array.h"
#include "tessera/runtime/kernels/pack_cuda.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cpu.h"
#include "tessera/runtime/kernels/update_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace tessera::runtime::cuda_shim_test {

namespace {

using tests::cuda_shim::dim3;
using tests::cuda_shim::GuardedTensors;
using tests::cuda_shim::kernel_options;
using tests::cuda_shim::OptionsScope;
using tests::cuda_shim::VastArray;

const detail::UpdateChecks kChecks("cuda_shim_test");

/// The kernels that were compiled as C++.
struct ShimDevice : TableDevice {
  ShimDevice() : TableDevice{shim_kernels()} {}
};

/// pack_segments_() as for CUDA tensors.
void pack_by_shim(
    std::span<const PackSegment> runs,
    double factor,
    PackMode mode = PackMode::kCopy) {
  std::vector<PackShard> shards;
  for (const PackSegment& run : runs) {
    const auto shard = detail::pack_shard(run);
    if (shard && (run.source.defined() || mode == PackMode::kCopy)) {
      shards.push_back(*shard);
    } else {
      pack_segments_({&run, 1}, factor, mode);
    }
  }
  const auto type =
      detail::element_type(runs.front().target.scalar_type()).value();
  EXPECT_EQ(
      launch_pack(shards.data(), shards.size(), type, factor, mode, nullptr),
      cudaSuccess);
}

class CudaShimUpdate : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  OptionsScope options_;
  GuardedTensors guarded_;
};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    CudaShimUpdate,
    ::testing::ValuesIn(device_cases::kMasterTypes),
    [](const auto& info) { return std::string(c10::toString(info.param)); });

class CudaShim : public ::testing::Test {
 protected:
  OptionsScope options_;
  GuardedTensors guarded_;
};

// The first is past what 32 bits can count, with a pack and a tail after it.
constexpr int64_t kVast = (int64_t{1} << 31) + 777;
// The elements that are looked at: the last block of a turn of the grid, and
// what remains for the next turn. A block updates 1024 elements and packs 2048.
constexpr int64_t kSeen = 1024 + 777;
constexpr int64_t kPackedSeen = 2048 + 777;

/// Runs only these blocks of 1024.
void run_blocks(const std::set<unsigned>& which) {
  kernel_options().runs_block = [which](const dim3& block) {
    EXPECT_EQ(tests::cuda_shim::kernel.grid.x, 1024);
    return which.count(block.x) > 0;
  };
}

} // namespace

TEST_P(CudaShimUpdate, AdamWHasTheBitsOfTheCpu) {
  device_cases::check_adamw_steps(ShimDevice(), GetParam());
}

TEST_P(CudaShimUpdate, HasTheBitsOfTheCpu) {
  device_cases::check_all_updates(ShimDevice(), GetParam());
}

TEST_P(CudaShimUpdate, KeepsWhatIsNotFinite) {
  device_cases::check_extremes(ShimDevice(), GetParam());
}

TEST_P(CudaShimUpdate, RoundsStochasticallyAsTheCpuDoes) {
  device_cases::check_stochastic_rounding(ShimDevice(), GetParam());
}

TEST_P(CudaShimUpdate, ManyRunsOfAllAlignmentsAreAsOneByOne) {
  device_cases::check_many_runs(ShimDevice(), GetParam());
  EXPECT_GE(kernel_options().launches, 3); // of 100 runs
}

TEST_P(CudaShimUpdate, LambsSumsAgree) {
  device_cases::check_lamb_sums(ShimDevice(), GetParam());
  EXPECT_GE(kernel_options().launches, 2); // of 40 runs
}

TEST_F(CudaShim, AdamWIsAsInFloat64) {
  torch::manual_seed(5);
  AdamWState state(5003, 0, at::kFloat);
  AdamWState wide = state.to(at::kDouble);
  for (AdamWStep step; step.step <= 5; ++step.step) {
    state.grad.normal_();
    wide.grad.copy_(state.grad);
    const UpdateSegment run{
        {state.master, state.grad, state.exp_avg, state.exp_avg_sq, {}}, step};
    ShimDevice().update(std::span<const UpdateSegment>(&run, 1));
    reference_adamw_float64(wide, step);
  }
  // Per step, three roundings of half a unit, of the decay, its product and the
  // sum; and a few of the update, which is at most some lr.
  const at::Tensor bound = 5 * 3 * 6e-8 * (wide.master.abs() + 10 * 1e-3);
  EXPECT_TRUE(((state.master - wide.master).abs() <= bound).all().item<bool>());
}

TEST_F(CudaShim, UpdatesReachElementsPast32Bits) {
  kernel_options().processors = 128;
  run_blocks({0, 1023});
  VastArray<float> master(kVast);
  VastArray<uint16_t> grad(kVast);
  VastArray<uint16_t> moment(kVast);
  VastArray<uint16_t> moment_sq(kVast);
  VastArray<uint16_t> low(kVast);
  const int64_t first = kVast - kSeen;
  const UpdateTensors seen{
      master.elements(first, kSeen, at::kFloat),
      grad.elements(first, kSeen, at::kBFloat16),
      moment.elements(first, kSeen, at::kBFloat16),
      moment_sq.elements(first, kSeen, at::kBFloat16),
      low.elements(first, kSeen, at::kBFloat16)};
  UpdateTensors cpu =
      device_cases::tensors_of(kSeen, at::kFloat, at::kBFloat16);
  cpu.moment_diff = at::Tensor(); // AdamW has neither
  cpu.previous_grad = at::Tensor();
  seen.master.copy_(cpu.master);
  seen.grad.copy_(cpu.grad);
  seen.moment.copy_(cpu.moment);
  seen.moment_sq.copy_(cpu.moment_sq);
  AdamWStep step{.step = 3, .rounding = {true, 5, /*first_element=*/7}};
  const AdamWShard<float> shard{
      .master = master.data(),
      .grad = grad.data(),
      .grad_format = LowPrecision::kBFloat16,
      .states = {moment.data(), moment_sq.data()},
      .state_format = LowPrecision::kBFloat16,
      .low_precision = low.data(),
      .low_precision_format = LowPrecision::kBFloat16,
      .rounding = RoundingKey(step.rounding),
      .numel = kVast,
      .rule = AdamWRule<float>(step)};
  EXPECT_EQ(launch_update(std::span(&shard, 1), nullptr), cudaSuccess);
  // The noise of these elements is that of their numbers.
  step.rounding.first_element += static_cast<uint64_t>(first);
  const UpdateSegment run{cpu, step};
  update_segments_({&run, 1});
  device_cases::expect_same(seen, cpu);
}

TEST_F(CudaShim, PackingReachesElementsPast32Bits) {
  // In packs, and element by element.
  for (const int64_t offset : {0, 1}) {
    // Without packs, four blocks do the last 777 elements.
    run_blocks(
        offset == 0 ? std::set<unsigned>{0, 1023}
                    : std::set<unsigned>{0, 1, 2, 3});
    const int64_t count = offset == 0 ? kPackedSeen : 777;
    VastArray<uint16_t> source(kVast);
    VastArray<float> target(kVast + offset);
    const at::Tensor values = at::randn({count}).to(at::kBFloat16);
    source.elements(kVast - count, count, at::kBFloat16).copy_(values);
    const PackShard shard{
        source.data(), target.data() + offset, kVast, ElementType::kBFloat16};
    EXPECT_EQ(
        launch_pack(
            &shard, 1, ElementType::kFloat32, 0.3, PackMode::kCopy, nullptr),
        cudaSuccess);
    const at::Tensor found =
        target.elements(offset + kVast - count, count, at::kFloat);
    EXPECT_TRUE(same_bits(found.clone(), values.to(at::kFloat) * 0.3));
  }
}

TEST_F(CudaShim, PackingConvertsScalesAndPads) {
  for (const at::ScalarType to : kPackTypes) {
    for (const at::ScalarType from : kPackTypes) {
      for (const double factor : {1.0, 0.25, 1.0 / 3}) {
        const int before = kernel_options().launches;
        check_pack(
            {.from = from, .to = to, .factor = factor, .longest_numel = 30'001},
            pack_by_shim);
        EXPECT_EQ(kernel_options().launches - before, 2);
      }
    }
  }
}

TEST_F(CudaShim, PackingAdds) {
  for (const at::ScalarType to : kPackTypes) {
    for (const at::ScalarType from : kPackTypes) {
      for (const double factor : {1.0, 0.25}) {
        const int before = kernel_options().launches;
        check_pack(
            {.from = from,
             .to = to,
             .factor = factor,
             .longest_numel = 30'001,
             .mode = PackMode::kAdd},
            pack_by_shim);
        EXPECT_EQ(kernel_options().launches - before, 2);
      }
    }
  }
}

TEST_F(CudaShim, PackingRoundsWhatIsNotFiniteOrTooLarge) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {
      0.,
      -0.,
      NAN,
      kInf,
      -kInf,
      65519.,
      65520.,
      -65536.,
      3.4e38,
      1e39,
      -1e300,
      1e-8,
      5.9e-8,
      3e-8,
      1e-40,
      1e-46,
      1 + 0x1p-11 + 0x1p-40};
  for (const at::ScalarType to : kPackTypes) {
    for (const at::ScalarType from : kPackTypes) {
      const at::Tensor source = at::tensor(values, at::kDouble).to(from);
      const PackSegment expected{at::zeros_like(source, to), source};
      const PackSegment run{at::zeros_like(source, to), source};
      for (const double factor : {1.0, 3.0}) {
        pack_segments_({&expected, 1}, factor);
        pack_by_shim({&run, 1}, factor);
        EXPECT_TRUE(same_bits_or_nan(run.target, expected.target))
            << from << " -> " << to;
      }
    }
  }
}

TEST_F(CudaShim, PacksMoreRunsThan16BitsCount) {
  constexpr int64_t kRuns = 65'537;
  // Of 0 to 2 elements, each with a number of its own.
  const at::Tensor source = at::arange(2 * kRuns, at::kFloat);
  const at::Tensor target = at::zeros({kRuns, 2});
  std::vector<PackShard> packs;
  for (int64_t i = 0; i < kRuns; ++i) {
    packs.push_back(
        {source.const_data_ptr<float>() + 2 * i,
         target.mutable_data_ptr<float>() + 2 * i,
         i % 3,
         ElementType::kFloat32});
  }
  EXPECT_EQ(
      launch_pack(
          packs.data(),
          packs.size(),
          ElementType::kFloat32,
          1,
          PackMode::kCopy,
          nullptr),
      cudaSuccess);
  EXPECT_EQ(kernel_options().launches, (kRuns + 119) / 120);
  const at::Tensor numel = at::arange(kRuns).remainder(3).view({kRuns, 1});
  EXPECT_TRUE(
      at::equal(target, source.view({kRuns, 2}) * (at::arange(2) < numel)));
}

TEST_F(CudaShim, AnErrorOfTheQuestionForTheDeviceIsReturned) {
  const UpdateTensors t = random_tensors(8, at::kFloat);
  const auto shard =
      detail::make_shard<AdamWShard<float>>(kChecks, t, AdamWStep());
  kernel_options().device_query = cudaErrorInvalidValue;
  EXPECT_EQ(
      launch_update(std::span(&shard, 1), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(kernel_options().launches, 0);
}

TEST_F(CudaShim, ErrorsOfLaunchesEndTheUpdate) {
  const UpdateTensors t = random_tensors(0, at::kFloat);
  // Of no elements: the same arrays are in all runs.
  std::vector<LambShard<float>> lambs(
      100, detail::make_shard<LambShard<float>>(kChecks, t, AdamWStep()));
  std::vector<double> sums(2 * kLambCudaBlocks * lambs.size());
  kernel_options().runs_block = [](const dim3&) { return false; };
  kernel_options().failing_launch = 2;
  EXPECT_NE(
      launch_lamb_moments(
          std::span<const LambShard<float>>(lambs), sums.data(), nullptr),
      cudaSuccess);
  EXPECT_EQ(kernel_options().launches, 2);
  // The error is cleared.
  EXPECT_EQ(tests::cuda_shim::last_error(), cudaSuccess);
  kernel_options().launches = 0;
  std::vector<AdamWShard<float>> shards(
      100, detail::make_shard<AdamWShard<float>>(kChecks, t, AdamWStep()));
  std::vector<PackShard> packs(
      300, {nullptr, t.grad.mutable_data_ptr(), 0, ElementType::kFloat32});
  EXPECT_NE(
      launch_update(std::span<const AdamWShard<float>>(shards), nullptr),
      cudaSuccess);
  EXPECT_EQ(kernel_options().launches, 2);
  kernel_options().launches = 0;
  EXPECT_NE(
      launch_pack(
          packs.data(),
          packs.size(),
          ElementType::kFloat32,
          1,
          PackMode::kCopy,
          nullptr),
      cudaSuccess);
  EXPECT_EQ(kernel_options().launches, 2);
}

} // namespace tessera::runtime::cuda_shim_test
