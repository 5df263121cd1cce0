// SPDX-License-Identifier: Apache-2.0
// Which rank holds which part of each tensor of a model, and whole values made
// of the parts.
#include "tessera/engine/checkpoint/model_tensors.h"

#include "engine/twin.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <map>
#include <string>
#include <vector>

namespace tessera::engine::model_tensors_test {

namespace {

using namespace tests;

/// Tied, transposed, without elements, a scalar, frozen; a buffer.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    linear = register_module("linear", torch::nn::Linear(7, 5));
    again = register_parameter("again", linear->weight);
    turned = register_parameter("turned", torch::randn({7, 3}).t());
    frozen = register_parameter("frozen", torch::randn({11}), false);
    scalar = register_parameter("scalar", torch::randn({}));
    empty = register_parameter("empty", torch::empty({0, 4}));
    buffer = register_buffer("buffer", torch::randn({3, 2}).t());
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor again, turned, frozen, scalar, empty, buffer;
};
TORCH_MODULE(OddNet);

OddNet make_odd_net() {
  torch::manual_seed(5);
  return {};
}

/// How often each element, in the order of memory, is in some part.
std::vector<int> times_held(const ModelTensor& tensor) {
  std::vector<int> times(static_cast<size_t>(tensor.spec.numel()));
  for (const HeldPart& held : tensor.parts) {
    EXPECT_TRUE(held.part.ranges.empty());
    for (int64_t i = 0; i < held.part.numel; ++i) {
      ++times.at(static_cast<size_t>(held.part.offset + i));
    }
  }
  return times;
}

void check_values(ModelTensors& all, const OddNet& plain, int rank) {
  std::map<std::string, at::Tensor> want;
  for (const auto& item : plain->named_parameters()) {
    want.emplace(item.key(), item.value().detach());
  }
  for (const auto& item : plain->named_buffers()) {
    want.emplace(item.key(), item.value());
  }
  size_t visits = 0;
  all.for_each([&](const ModelTensor& tensor, const at::Tensor& value) {
    SCOPED_TRACE(tensor.name());
    ++visits;
    EXPECT_TRUE(value.is_contiguous());
    EXPECT_EQ(value.scalar_type(), tensor.spec.dtype);
    EXPECT_TRUE(value.equal(want.at(tensor.name())));
    EXPECT_EQ(tensor.is_buffer, tensor.name() == "buffer");
  });
  EXPECT_EQ(visits, rank == 0 ? want.size() : 0);
}

} // namespace

TEST(ModelTensors, EveryElementIsHeldOnce) {
  for (const int size : {1, 2, 3, 4}) {
    for (const int shard_ranks : {0, size == 4 ? 2 : size}) {
      run_ranks(size, [&](World& world) {
        const OddNet plain = make_odd_net();
        OddNet net = make_odd_net();
        EngineOptions options = group_per_layer();
        options.sharding.shard_ranks = shard_ranks;
        Engine engine = wrap(net, options);
        ModelTensors all = engine.model_tensors();
        for (const ModelTensor& tensor : all.tensors()) {
          SCOPED_TRACE(tensor.name());
          const std::vector<int> once(
              static_cast<size_t>(tensor.spec.numel()), 1);
          EXPECT_EQ(times_held(tensor), once);
          int last = -1;
          for (const HeldPart& held : tensor.parts) {
            EXPECT_GT(held.rank, last);
            last = held.rank;
            // Of replicas, the first holds it.
            EXPECT_LT(held.rank, shard_ranks == 0 ? size : shard_ranks);
          }
          EXPECT_EQ(
              all.is_first_holder(tensor),
              tensor.parts.front().rank == world.rank());
        }
        EXPECT_EQ(all.find("again"), all.find("linear.weight"));
        EXPECT_EQ(all.find("agian"), nullptr);
        check_values(all, plain, world.rank());
      });
    }
  }
}

TEST(ModelTensors, ValuesAreTheOptimizersAndInTheTypesBeforeWrap) {
  run_ranks(2, [](World& world) {
    const OddNet plain = make_odd_net();
    OddNet net = make_odd_net();
    EngineOptions options = group_per_layer();
    options.sharding.precision.parameters = at::kBFloat16;
    Engine engine = wrap(net, options);
    ModelTensors all = engine.model_tensors();
    check_values(all, plain, world.rank()); // not rounded
  });
}

TEST(ModelTensors, AFailingVisitIsAnErrorOnEveryRank) {
  run_ranks(3, [](World& world) {
    OddNet net = make_odd_net();
    Engine engine = wrap(net, group_per_layer());
    ModelTensors all = engine.model_tensors();
    expect_error(
        [&] {
          all.for_each([&](const ModelTensor& tensor, const at::Tensor&) {
            TESSERA_CHECK(tensor.name() != "turned", "the disk is full");
          });
        },
        {world.rank() == 0 ? "the disk is full"
                           : "values on rank 0 failed on 1 other rank"});
    // The ranks are together still.
    const OddNet plain = make_odd_net();
    check_values(all, plain, world.rank());
  });
}

TEST(ModelTensors, OfAModuleWithoutEngine) {
  const OddNet plain = make_odd_net();
  ModelTensors all(*plain);
  EXPECT_EQ(all.ranks().size(), 1);
  check_values(all, plain, 0);
}

} // namespace tessera::engine::model_tensors_test
