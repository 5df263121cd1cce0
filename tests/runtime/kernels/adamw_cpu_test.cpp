// SPDX-License-Identifier: Apache-2.0
// The CPU kernels against each other.
#include "tessera/runtime/kernels/update_cpu.h"

#include "runtime/kernels/adamw_reference.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/threads/thread_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace tessera::runtime::adamw_cpu_test {

namespace {

/// Three steps of `isa`, from a start that numel and offset determine.
struct Trial {
  AdamWState state;
  at::Tensor low;

  Trial(Isa isa, int64_t numel, int64_t offset) {
    torch::manual_seed(numel * 31 + offset);
    state = AdamWState(numel, offset, at::kFloat);
    at::ScalarType format = numel % 2 == 0 ? at::kBFloat16 : at::kHalf;
    low = at::zeros({numel + offset}, format).narrow(0, offset, numel);
    for (int64_t step = 1; step <= 3; ++step) {
      state.grad.copy_(random_spread(numel, at::kFloat, /*decades=*/30));
      AdamWShard<float> shard =
          state.shard<float>({.step = step, .grad_scale = 0.7});
      shard.low_precision = static_cast<uint16_t*>(low.mutable_data_ptr());
      shard.low_precision_format = format == at::kBFloat16
                                       ? LowPrecision::kBFloat16
                                       : LowPrecision::kFloat16;
      run_cpu_updates({update_of(isa, shard)});
    }
  }
};

} // namespace

TEST(AdamWCpu, GivesTheSameBitsOnAllInstructionSets) {
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_available(isa)) {
      GTEST_SKIP() << "this processor lacks instruction set "
                   << static_cast<int>(isa);
    }
    for (int64_t numel = 0; numel <= 129; ++numel) {
      Trial portable(Isa::kPortable, numel, numel % 5);
      Trial vector(isa, numel, numel % 5);
      ASSERT_TRUE(same_bits(vector.state.master, portable.state.master));
      ASSERT_TRUE(same_bits(vector.state.exp_avg, portable.state.exp_avg));
      ASSERT_TRUE(
          same_bits(vector.state.exp_avg_sq, portable.state.exp_avg_sq));
      ASSERT_TRUE(same_bits(vector.low, portable.low)) << numel;
    }
    Trial portable(Isa::kPortable, 70001, 3);
    Trial vector(isa, 70001, 3);
    ASSERT_TRUE(same_bits(vector.state.master, portable.state.master));
    ASSERT_TRUE(same_bits(vector.low, portable.low));
  }
}

TEST(AdamWCpu, RoundsLowPrecisionToNearestEven) {
  // Every exponent, with the bits that are cut off just below, at and above a
  // tie, for bfloat16 (16 bits cut) and for normal float16 (13 bits).
  std::vector<float> values;
  for (uint32_t top = 0; top < 0xff00; top += 0x7) {
    for (uint32_t cut : {0x7fffu, 0x8000u, 0x8001u, 0xfffu, 0x1000u, 0x1001u}) {
      uint32_t bits = (top << 16) | cut;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      if (std::isfinite(value)) {
        values.push_back(value);
      }
    }
  }
  const auto numel = static_cast<int64_t>(values.size());
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_available(isa)) {
      continue;
    }
    for (at::ScalarType format : {at::kBFloat16, at::kHalf}) {
      AdamWState state(numel, 0, at::kFloat);
      state.master.copy_(torch::tensor(values));
      at::Tensor low = at::empty({numel}, format);
      // Without learning rate and decay the master stays what it is.
      AdamWShard<float> shard =
          state.shard<float>({.lr = 0, .weight_decay = 0});
      shard.low_precision = static_cast<uint16_t*>(low.mutable_data_ptr());
      shard.low_precision_format = format == at::kBFloat16
                                       ? LowPrecision::kBFloat16
                                       : LowPrecision::kFloat16;
      run_cpu_updates({update_of(isa, shard)});
      EXPECT_TRUE(same_bits(low, torch::tensor(values).to(format)))
          << format << ", instruction set " << static_cast<int>(isa);
    }
  }
}

TEST(AdamWCpu, WritesNothingBeyondTheShard) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_available(isa)) {
      continue;
    }
    for (int64_t numel = 0; numel <= 40; ++numel) {
      AdamWState full(64, 0, at::kFloat);
      at::Tensor low = at::full({64}, 3, at::kHalf);
      AdamWState expected = full.clone();
      AdamWShard<float> shard = full.shard<float>({});
      shard.numel = numel;
      shard.low_precision = static_cast<uint16_t*>(low.mutable_data_ptr());
      shard.low_precision_format = LowPrecision::kFloat16;
      run_cpu_updates({update_of(isa, shard)});
      const auto rest = [&](const at::Tensor& t) { return t.slice(0, numel); };
      EXPECT_TRUE(same_bits(rest(full.master), rest(expected.master)));
      EXPECT_TRUE(same_bits(rest(full.exp_avg), rest(expected.exp_avg)));
      EXPECT_TRUE(same_bits(rest(full.exp_avg_sq), rest(expected.exp_avg_sq)));
      EXPECT_TRUE((rest(low) == 3).all().item<bool>());
    }
  }
}

TEST(AdamWCpu, DoesNotDependOnTheNumberOfThreads) {
  configure_update_pool(CpuPlacement(1));
  Trial one(best_isa(), 200003, 1);
  configure_update_pool(CpuPlacement(3));
  Trial three(best_isa(), 200003, 1);
  configure_update_pool(place_update_threads({}));
  EXPECT_TRUE(same_bits(one.state.master, three.state.master));
  EXPECT_TRUE(same_bits(one.low, three.low));
}

} // namespace tessera::runtime::adamw_cpu_test
