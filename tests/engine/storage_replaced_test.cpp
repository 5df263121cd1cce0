// SPDX-License-Identifier: Apache-2.0
// Parameters whose storage is replaced, or written in place, behind the
// engine's back.
#include "engine/twin.h"
#include "support/ranks.h"

#include <sstream>

namespace tessera::tests::storage_replaced_test {

class StorageReplaced : public ::testing::TestWithParam<int> {};

TEST_P(StorageReplaced, ModuleToAnotherTypeIsFoundByStep) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    twin.train(0);
    twin.wrapped->to(torch::kFloat);
    const auto x = batch_of(1, world.rank()).to(torch::kFloat);
    const auto loss = twin.wrapped->forward(x).square().mean();
    expect_throws(
        [&] { twin.engine.backward(loss); },
        {"parameter 'first.weight'", "replaced", "unwrap()"});
    loss.backward();
    expect_throws([&] { twin.engine.step(); }, {"'first.weight'", "replaced"});
  });
}

TEST_P(StorageReplaced, SetDataOfOneParameterIsFound) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    twin.train(0);
    auto& weight = twin.wrapped->blocks[1]->up->weight;
    weight.set_data(torch::zeros_like(weight));
    const std::initializer_list<const char*> parts{
        "parameter 'block1.up.weight'", "replaced"};
    if (world.size() > 1) {
      // The first gather of a step looks at every parameter.
      expect_throws(
          [&] { mean_square(*twin.wrapped, batch_of(1, world.rank())); },
          parts);
    }
    expect_throws([&] { twin.engine.step(); }, parts);
  });
}

TEST_P(StorageReplaced, LoadAfterWrapIsRefused) {
  run_ranks(GetParam(), [](World&) {
    std::stringstream file;
    torch::save(make_net<StackImpl>(), file);
    Twin<StackImpl> twin;
    twin.train(0);
    expect_throws(
        [&] { torch::load(twin.wrapped, file); },
        {"parameter 'first.weight' is sharded", "before wrap()"});
    twin.train(1);
    twin.expect_same_parameters();
  });
}

TEST_P(StorageReplaced, LoadInAWritableScopeIsFoundLater) {
  run_ranks(GetParam(), [](World& world) {
    std::stringstream file;
    torch::save(make_net<StackImpl>(), file);
    Twin<StackImpl> twin;
    twin.train(0);
    expect_throws(
        [&] {
          {
            const auto scope = twin.engine.gather({.writable = true});
            torch::load(twin.wrapped, file);
          }
          mean_square(*twin.wrapped, batch_of(1, world.rank())).backward();
          twin.engine.step();
        },
        {"parameter 'first.weight'"});
  });
}

namespace {

struct Write {
  const char* name;
  const char* op;
  std::function<void(StackImpl&)> write;
};

std::vector<Write> writes() {
  return {
      {"init",
       "aten::uniform_",
       [](StackImpl& net) {
         torch::manual_seed(3);
         torch::nn::init::uniform_(net.last->weight, -0.5, 0.5);
       }},
      {"clamp_",
       "aten::clamp_",
       [](StackImpl& net) {
         const at::NoGradGuard guard;
         net.last->weight.clamp_(-0.1, 0.1);
       }},
      {"foreach",
       "aten::_foreach_mul_",
       [](StackImpl& net) {
         const at::NoGradGuard guard;
         std::vector<at::Tensor> list{net.last->weight, net.last->bias};
         torch::_foreach_mul_(list, 0.5);
       }},
      {"out=",
       "aten::add",
       [](StackImpl& net) {
         const at::NoGradGuard guard;
         auto weight = net.last->weight;
         const auto one = torch::ones_like(weight);
         torch::add_out(weight, one, one);
       }},
      {"out= of a creator",
       "aten::zeros_like",
       [](StackImpl& net) {
         const at::NoGradGuard guard;
         auto weight = net.last->weight;
         at::zeros_like_out(weight, torch::ones_like(weight));
       }},
      {"data()",
       "aten::fill_",
       [](StackImpl& net) { net.last->weight.data().fill_(0.25); }},
      {"a view",
       "aten::",
       [](StackImpl& net) {
         const at::NoGradGuard guard;
         net.last->weight[0].fill_(0.125);
       }},
      {"copy_",
       "aten::copy_",
       [](StackImpl& net) {
         const at::NoGradGuard guard;
         net.last->weight.copy_(torch::full_like(net.last->weight, 0.3));
       }},
  };
}

} // namespace

TEST_P(StorageReplaced, WritesOutsideAWritableScopeAreRefused) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    int step = 0;
    for (const Write& write : writes()) {
      expect_throws(
          [&] { write.write(*twin.wrapped); },
          {"parameter 'last.",
           "writes to it in place",
           write.op,
           "gather",
           "engine.unwrap()"});
      // Sharded or resident, within a step or not, makes no difference.
      const auto loss = mean_square(*twin.wrapped, batch_of(step, twin.rank()));
      expect_throws(
          [&] { write.write(*twin.wrapped); },
          {"parameter 'last.", "writes to it in place"});
      {
        const auto scope = twin.engine.gather();
        expect_throws(
            [&] { write.write(*twin.wrapped); },
            {"parameter 'last.", "writes to it in place"});
      }
      twin.plain_backward(step, mean_square);
      twin.engine.backward(loss);
      twin.step();
      twin.expect_same_parameters(write.name);
      ++step;
    }
  });
}

// Its forward writes to the rows that it takes.
TEST_P(StorageReplaced, AnEmbeddingWithAMaximalNormIsRefused) {
  run_ranks(GetParam(), [](World&) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(5, 3).max_norm(0.1));
    EngineOptions options;
    options.log_memory = false;
    const Engine engine = wrap(net, options);
    expect_throws(
        [&] { net->forward(torch::arange(3)); },
        {"parameter 'weight'",
         "without max_norm",
         "after engine.step()",
         "`ignored`"});
  });
}

TEST_P(StorageReplaced, WritesInAWritableScopeReachAllRanks) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    int step = 0;
    for (const Write& write : writes()) {
      write.write(*twin.plain);
      {
        const auto scope = twin.engine.gather(
            std::vector<at::Tensor>{twin.wrapped->last->weight},
            {.writable = true});
        write.write(*twin.wrapped);
      }
      twin.expect_same_parameters(write.name);
      twin.train(step++);
      twin.expect_same_parameters(write.name);
    }
  });
}

TEST_P(StorageReplaced, WritesBetweenForwardAndStepAreKept) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      twin.plain_backward(step, mean_square);
      twin.wrapped_backward(step, mean_square);
      {
        const at::NoGradGuard guard;
        const auto scope =
            twin.engine.gather(*twin.wrapped->last, {.writable = true});
        for (auto* net : {twin.plain.get(), twin.wrapped.get()}) {
          net->last->weight.clamp_(-0.2, 0.2);
        }
      }
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(StorageReplaced, RanksThatWriteDifferentValuesStillAgreeAfterwards) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto x = batch_of(7, 0);
    for (int step = 0; step < 3; ++step) {
      // The groups are resident when the scope begins.
      { const auto y = twin.wrapped->forward(x); }
      {
        const at::NoGradGuard guard;
        const auto scope = twin.engine.gather({.writable = true});
        torch::manual_seed(world.rank());
        for (auto& parameter : twin.wrapped->parameters()) {
          parameter.uniform_(-0.3, 0.3);
        }
      }
      if (world.size() > 1) {
        expect_error(
            [&] { twin.engine.sum_over_ranks(torch::zeros({1})); },
            {"have written other values to"});
      }
      const auto loss = twin.wrapped->forward(x).square().mean();
      const auto self_value = loss.detach().clone();
      auto sum = self_value.clone();
      twin.engine.backward(loss);
      twin.engine.step();
      auto group = world.new_communicator("comparison");
      group->all_reduce_sum(sum, "comparison").wait();
      EXPECT_DOUBLE_EQ(
          sum.item<double>() / world.size(), self_value.item<double>());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, StorageReplaced, ::testing::Range(1, 4));

} // namespace tessera::tests::storage_replaced_test
