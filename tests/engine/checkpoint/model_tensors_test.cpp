// SPDX-License-Identifier: Apache-2.0
// Which rank holds which part of each tensor of a model, and whole values made
// of the parts.
#include "tessera/engine/checkpoint/model_tensors.h"

#include "engine/parallel/mesh_checkpoint.h"
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

/// How often each element is in some part; of whole tensors, in the order of
/// memory.
at::Tensor times_held(const ModelTensor& tensor) {
  at::Tensor times = torch::zeros({tensor.spec.numel()}, torch::kInt);
  const at::Tensor places =
      torch::arange(tensor.spec.numel()).view(tensor.spec.sizes);
  for (const RankSlice& held : tensor.parts) {
    at::Tensor box = places;
    for (const DimRange& range : held.part.ranges) {
      box = box.narrow(range.dim, range.begin, range.end - range.begin);
    }
    times.index_add_(
        0,
        box.reshape({-1}).narrow(0, held.part.offset, held.part.numel),
        torch::ones({held.part.numel}, torch::kInt));
  }
  return times;
}

void expect_held_once(const ModelTensor& tensor) {
  EXPECT_TRUE(times_held(tensor).eq(1).all().item<bool>());
  int last = -1;
  for (const RankSlice& held : tensor.parts) {
    EXPECT_GT(held.rank, last);
    last = held.rank;
  }
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
  EXPECT_EQ(visits, rank == 0 ? want.size() - 1 : 0); // "again" is tied
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
          expect_held_once(tensor);
          // Of replicas, the first holds it.
          EXPECT_LT(
              tensor.parts.back().rank, shard_ranks == 0 ? size : shard_ranks);
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

TEST(ModelTensors, EveryElementIsHeldOnceUnderEveryLayout) {
  for (const MeshLayout& layout : kMeshLayouts) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(layout.name);
      run_ranks(layout.world_size(), [&](World& world) {
        MeshJob job(world, layout, mesh_options(), tied);
        ModelTensors all = job.engine().model_tensors();
        const int stages = layout.sizes.pipeline;
        const int ranks_of_stage = world.size() / stages;
        size_t buffers = 0;
        for (const ModelTensor& tensor : all.tensors()) {
          SCOPED_TRACE(tensor.name());
          expect_held_once(tensor);
          const int stage = tensor.spec.pipeline_stage;
          for (const RankSlice& held : tensor.parts) {
            EXPECT_EQ(held.rank / ranks_of_stage, stage);
          }
          for (int i = 0; i < kMeshBlocks; ++i) {
            if (tensor.name() == "number" + std::to_string(i)) {
              ++buffers;
              EXPECT_GE(i, stage * kMeshBlocks / stages);
              EXPECT_LT(i, (stage + 1) * kMeshBlocks / stages);
            }
          }
        }
        EXPECT_EQ(buffers, kMeshBlocks);
        EXPECT_EQ(
            all.find("head.weight") == nullptr, tied); // the embedding is it
      });
    }
  }
}

// Statistics of a rank's own, say.
TEST(ModelTensors, OfBuffersThatDifferTheFirstRanksCounts) {
  run_ranks(2, [](World& world) {
    OddNet net = make_odd_net();
    Engine engine = wrap(net, group_per_layer());
    const at::NoGradGuard no_grad;
    net->buffer.set_data(torch::full({1 + world.rank()}, 7.0));
    engine.model_tensors().for_each(
        [](const ModelTensor&, const at::Tensor& value) {
          EXPECT_TRUE(value.equal(torch::full({1}, 7.0)));
        },
        [](const ModelTensor& tensor) { return tensor.is_buffer; });
  });
}

TEST(ModelTensors, ARankThatCannotListIsAnErrorOnEveryRank) {
  run_ranks(2, [](World& world) {
    OddNet net = make_odd_net();
    Engine engine = wrap(net, group_per_layer());
    const at::NoGradGuard no_grad;
    net->buffer.set_data(torch::ones({1}));
    if (world.rank() == 1) { // not a name that the others have
      net->register_buffer(std::string("\xff"), torch::ones({1}));
    }
    expect_error(
        [&] {
          try {
            engine.model_tensors();
          } catch (const Error&) {
            throw;
          } catch (const std::exception& other) { // of the JSON library
            TESSERA_FAIL("on rank 1: {}", other.what());
          }
        },
        {"on rank 1"});
  });
}

TEST(ModelTensors, ValuesAreTheOptimizersAndInTheTypesBeforeWrap) {
  run_ranks(2, [](World& world) {
    const OddNet plain = make_odd_net();
    OddNet net = make_odd_net();
    EngineOptions options = group_per_layer();
    options.precision.parameters = at::kBFloat16;
    Engine engine = wrap(net, options);
    ModelTensors all = engine.model_tensors();
    {
      const at::NoGradGuard no_grad;
      plain->frozen.copy_(plain->frozen.to(at::kBFloat16)); // has no master
    }
    check_values(all, plain, world.rank());
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
                           : "values to rank 0 failed on 1 other rank"});
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
