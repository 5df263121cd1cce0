// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/paging/pager.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::sharding::deferred_init_test {

namespace {

/// Element i is 10000 * which + i.
DeferredInit counting(int64_t which, std::vector<int64_t>* filled = nullptr) {
  return {
      [=](const at::Tensor& slice, int64_t first) {
        slice.copy_(at::arange(first, first + slice.numel()) + 10000 * which);
        if (filled != nullptr) {
          filled->push_back(slice.numel());
        }
      },
      "number " + std::to_string(which)};
}

struct Net : torch::nn::Module {
  // Large enough to have a part on each of three ranks.
  explicit Net(std::vector<int64_t>* filled = nullptr) {
    register_parameter(
        "a", make_deferred({70, 13}, at::kFloat, counting(1, filled)));
    register_parameter("b", torch::full({5}, 2.5));
    register_parameter(
        "c", make_deferred({4}, at::kDouble, counting(3, filled)));
  }
};

void expect_values(const std::string& name, const at::Tensor& value) {
  if (name == "b") {
    EXPECT_TRUE(torch::equal(value, torch::full({5}, 2.5)));
    return;
  }
  const auto expected =
      torch::arange(value.numel()) + (name == "a" ? 10000 : 30000);
  EXPECT_TRUE(torch::equal(value.flatten(), expected.to(value.dtype())))
      << name;
}

} // namespace

TEST(DeferredInit, HasAShapeAndNoMemory) {
  const at::Tensor x = make_deferred(
      {1 << 20, 1 << 20}, at::TensorOptions().dtype(at::kBFloat16), {});
  EXPECT_TRUE(is_deferred(x));
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{1 << 20, 1 << 20}));
  EXPECT_EQ(x.storage().nbytes(), size_t{2} << 40);
  EXPECT_EQ(x.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_TRUE(is_deferred(x.t()));
  EXPECT_FALSE(is_deferred(at::empty({2})));
  EXPECT_FALSE(is_deferred(at::Tensor()));
}

TEST(DeferredInit, ReadingItSaysWhatToDo) {
  const at::Tensor x = make_deferred({4}, at::kFloat, counting(1));
  const auto message = [&] {
    try {
      x.sum();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing was thrown");
  }();
  EXPECT_NE(message.find("number 1 has no memory yet"), std::string::npos)
      << message;
  EXPECT_NE(message.find("tessera::wrap"), std::string::npos) << message;
}

TEST(DeferredInit, GoesWithTheStorage) {
  const auto witness = std::make_shared<int>(0);
  const auto init = [&] {
    return DeferredInit{[witness](const at::Tensor&, int64_t) {}};
  };
  at::Tensor x = make_deferred({4}, at::kFloat, init());
  EXPECT_EQ(witness.use_count(), 2);
  set_deferred_init(*x.storage().unsafeGetStorageImpl(), init());
  EXPECT_EQ(witness.use_count(), 2);
  x.reset();
  EXPECT_EQ(witness.use_count(), 1);
}

TEST(DeferredInit, MaterializedWhole) {
  Net net;
  materialize(net);
  for (const auto& item : net.named_parameters()) {
    EXPECT_FALSE(is_deferred(item.value()));
    expect_values(item.key(), item.value());
  }
  materialize(net); // nothing left to do
}

TEST(DeferredInit, EachRankFillsItsSliceOnly) {
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [](World& world) {
      std::vector<int64_t> filled;
      Net net(&filled);
      MemoryLedger ledger;
      Pager pager(world, net, {}, ledger);
      int64_t sum = 0;
      for (const int64_t numel : filled) {
        sum += numel;
      }
      const at::Tensor total = torch::tensor({sum}, torch::kLong);
      pager.sum_over_ranks(total);
      EXPECT_EQ(total.item<int64_t>(), 70 * 13 + 4);
      if (world.size() > 1) {
        EXPECT_LT(sum, 70 * 13 + 4);
      }
      pager.unwrap();
      for (const auto& item : net.named_parameters()) {
        expect_values(item.key(), item.value());
      }
    });
  }
}

} // namespace tessera::sharding::deferred_init_test
