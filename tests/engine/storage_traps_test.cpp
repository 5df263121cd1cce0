// SPDX-License-Identifier: Apache-2.0
// A storage is not a parameter, and a parameter can be read, written and
// replaced in more ways than by an operator of forward.
#include "engine/twin.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"

#include <sstream>

namespace tessera::testing {

namespace {

at::Tensor mean_square(StackImpl& net, const at::Tensor& x) {
  return net.forward(x).square().mean();
}

/// An LSTM whose weights lie one behind the other in one storage, as
/// flatten_parameters() leaves them on a GPU.
struct FlatLstm : torch::nn::Module {
  FlatLstm()
      : lstm(register_module(
            "lstm",
            torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, 4).num_layers(2)))),
        head(register_module("head", torch::nn::Linear(4, 2))) {}
  void flatten() {
    int64_t total = 0;
    for (const auto& parameter : lstm->parameters()) {
      total += parameter.numel();
    }
    const auto flat = torch::empty({total}, torch::kDouble);
    int64_t offset = 0;
    for (auto& parameter : lstm->parameters()) {
      auto slice =
          flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
      slice.copy_(parameter.detach());
      offset += parameter.numel();
      parameter.set_data(slice);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return head(std::get<0>(lstm(x.unsqueeze(0))));
  }
  torch::nn::LSTM lstm;
  torch::nn::Linear head;
};

/// A linear layer on a weight that somebody else has made.
struct GivenLinear : torch::nn::Module {
  explicit GivenLinear(const at::Tensor& given)
      : weight(register_parameter("weight", given)) {}
  at::Tensor forward(const at::Tensor& x) {
    return torch::matmul(x, weight);
  }
  at::Tensor weight;
};

/// Two children whose weights are slices of one tensor; a gap between them.
struct Slices : torch::nn::Module {
  Slices() {
    const auto big = torch::randn({20, kWidth}, torch::kDouble);
    const auto slice = [&](int64_t from) {
      return big.narrow(0, from, kWidth).detach();
    };
    left = register_module("left", std::make_shared<GivenLinear>(slice(1)));
    middle = register_module("middle", torch::nn::Linear(kWidth, kWidth));
    right = register_module("right", std::make_shared<GivenLinear>(slice(11)));
    middle->to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return right->forward(torch::tanh(middle(left->forward(x))));
  }
  std::shared_ptr<GivenLinear> left;
  torch::nn::Linear middle{nullptr};
  std::shared_ptr<GivenLinear> right;
};

/// One weight under two children.
struct TiedChildren : torch::nn::Module {
  TiedChildren() {
    const auto shared =
        torch::randn({kWidth, kWidth}, torch::kDouble).mul_(0.3);
    left = register_module("left", std::make_shared<GivenLinear>(shared));
    middle = register_module("middle", torch::nn::Linear(kWidth, kWidth));
    right =
        register_module("right", std::make_shared<GivenLinear>(left->weight));
    middle->to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return right->forward(torch::tanh(middle(left->forward(x))));
  }
  std::shared_ptr<GivenLinear> left;
  torch::nn::Linear middle{nullptr};
  std::shared_ptr<GivenLinear> right;
};

template <typename Net>
std::shared_ptr<Net> seeded() {
  torch::manual_seed(5);
  return std::make_shared<Net>();
}

template <typename Net>
void expect_trains_like_plain(Twin<Net>& twin, int steps = 4) {
  for (int step = 0; step < steps; ++step) {
    twin.train(step);
    twin.expect_same_parameters("after step " + std::to_string(step));
  }
}

} // namespace

class StorageTraps : public ::testing::TestWithParam<int> {};

TEST_P(StorageTraps, WeightsOfALstmInOneStorage) {
  run_ranks(GetParam(), [](World&) {
    const auto make = [] {
      auto net = make_net<FlatLstm>();
      net->flatten();
      return net;
    };
    Twin<FlatLstm> twin(make(), make());
    EXPECT_TRUE(twin.wrapped->lstm->parameters()[0].is_alias_of(
        twin.wrapped->lstm->parameters()[3]));
    expect_trains_like_plain(twin);
  });
}

TEST_P(StorageTraps, SlicesOfOneTensorUnderTwoChildren) {
  run_ranks(GetParam(), [](World&) {
    Twin<Slices> twin(seeded<Slices>(), seeded<Slices>());
    expect_trains_like_plain(twin);
  });
}

TEST_P(StorageTraps, OneWeightUnderTwoChildren) {
  run_ranks(GetParam(), [](World&) {
    Twin<TiedChildren> twin(seeded<TiedChildren>(), seeded<TiedChildren>());
    expect_trains_like_plain(twin);
  });
}

TEST_P(StorageTraps, ParametersThatOverlapAreRefused) {
  run_ranks(GetParam(), [](World&) {
    struct Overlapping : torch::nn::Module {
      Overlapping() {
        const auto big = torch::randn({10});
        register_parameter("low", big.narrow(0, 0, 6).detach());
        register_parameter("high", big.narrow(0, 5, 5).detach());
      }
    } net;
    expect_throws(
        [&] { wrap(net, group_per_layer()); }, {"'low'", "'high'", "register"});
    // The refused module is as it was.
    EXPECT_TRUE(net.parameters()[0].sum().defined());
    EXPECT_NE(net.parameters()[0].data_ptr(), nullptr);
  });
}

TEST_P(StorageTraps, WrongOptionsLeaveTheModuleWhole) {
  run_ranks(GetParam(), [](World&) {
    auto net = make_net<StackImpl>();
    const auto before = net->last->weight.detach().clone();
    auto options = group_per_layer();
    options.optimizer.lr = -1;
    expect_throws([&] { wrap(net, options); }, {"lr is -1"});
    EXPECT_TRUE(torch::equal(net->last->weight, before));
    Twin<StackImpl> twin(make_net<StackImpl>(), net);
    expect_trains_like_plain(twin, 2);
  });
}

TEST_P(StorageTraps, AWrappedModuleIsNotWrappedAgain) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    expect_throws(
        [&] { wrap(twin.wrapped, group_per_layer()); },
        {"'first.weight'", "already held by another engine", "unwrap()"});
    expect_trains_like_plain(twin, 2);
  });
}

// ---- replaced storages

TEST_P(StorageTraps, ModuleToAnotherTypeIsFoundByStep) {
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

TEST_P(StorageTraps, SetDataOfOneParameterIsFound) {
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

TEST_P(StorageTraps, LoadAfterWrapIsRefused) {
  run_ranks(GetParam(), [](World&) {
    std::stringstream file;
    torch::save(make_net<StackImpl>(), file);
    Twin<StackImpl> twin;
    twin.train(0);
    expect_throws(
        [&] { torch::load(twin.wrapped, file); },
        {"parameter 'first.weight' is sharded", "before tessera::wrap"});
    twin.train(1);
    twin.expect_same_parameters();
  });
}

TEST_P(StorageTraps, LoadInAWritableScopeIsFoundLater) {
  run_ranks(GetParam(), [](World& world) {
    std::stringstream file;
    torch::save(make_net<StackImpl>(), file);
    Twin<StackImpl> twin;
    twin.train(0);
    expect_throws(
        [&] {
          {
            const auto scope = twin.engine.gather(/*writable=*/true);
            torch::load(twin.wrapped, file);
          }
          mean_square(*twin.wrapped, batch_of(1, world.rank())).backward();
          twin.engine.step();
        },
        {"parameter 'first.weight'"});
  });
}

// ---- writes in place

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

TEST_P(StorageTraps, WritesOutsideAWritableScopeAreRefused) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    int step = 0;
    for (const Write& write : writes()) {
      expect_throws(
          [&] { write.write(*twin.wrapped); },
          {"parameter 'last.", "writes to it in place", write.op, "gather"});
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

TEST_P(StorageTraps, WritesInAWritableScopeReachAllRanks) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    int step = 0;
    for (const Write& write : writes()) {
      write.write(*twin.plain);
      {
        const auto scope = twin.engine.gather(
            std::vector<at::Tensor>{twin.wrapped->last->weight},
            /*writable=*/true);
        write.write(*twin.wrapped);
      }
      twin.expect_same_parameters(write.name);
      twin.train(step++);
      twin.expect_same_parameters(write.name);
    }
  });
}

TEST_P(StorageTraps, WritesBetweenForwardAndStepAreKept) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      twin.plain_backward(step, mean_square);
      twin.wrapped_backward(step, mean_square);
      {
        const at::NoGradGuard guard;
        const auto scope = twin.engine.gather(*twin.wrapped->last, true);
        for (auto* net : {twin.plain.get(), twin.wrapped.get()}) {
          net->last->weight.clamp_(-0.2, 0.2);
        }
      }
      twin.step();
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(StorageTraps, RanksThatWriteDifferentValuesStillAgreeAfterwards) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto x = batch_of(7, 0);
    for (int step = 0; step < 3; ++step) {
      // The groups are resident when the scope begins.
      { const auto y = twin.wrapped->forward(x); }
      {
        const at::NoGradGuard guard;
        const auto scope = twin.engine.gather(true);
        torch::manual_seed(world.rank());
        for (auto& parameter : twin.wrapped->parameters()) {
          parameter.uniform_(-0.3, 0.3);
        }
      }
      const auto loss = twin.wrapped->forward(x).square().mean();
      const auto mine = loss.detach().clone();
      auto sum = mine.clone();
      twin.engine.backward(loss);
      twin.engine.step();
      auto group = world.new_communicator("comparison");
      group->all_reduce_sum(sum, "comparison").wait();
      EXPECT_DOUBLE_EQ(sum.item<double>() / world.size(), mine.item<double>());
    }
  });
}

// ---- reads past the dispatcher

TEST_P(StorageTraps, RawPointersOfShardedParametersAreRefused) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    auto& weight = twin.wrapped->blocks[2]->down->weight;
    const auto expected = twin.plain->blocks[2]->down->weight.detach();
    const auto read_raw = [&] { return weight.data_ptr<double>()[1]; };
    const auto read_accessor = [&] {
      return weight.accessor<double, 2>()[0][1];
    };
    if (world.size() > 1) {
      const std::initializer_list<const char*> parts{
          "parameter 'block2.down.weight' is sharded", "gather()"};
      expect_throws(read_raw, parts);
      expect_throws(read_accessor, parts);
      expect_throws([&] { (void)weight.const_data_ptr<double>(); }, parts);
      expect_throws([&] { (void)weight.storage().data(); }, parts);
    }
    const auto scope = twin.engine.gather();
    EXPECT_EQ(read_raw(), expected[0][1].item<double>());
    EXPECT_EQ(read_accessor(), expected[0][1].item<double>());
  });
}

TEST_P(StorageTraps, ViewsMadeBeforeWrapAreRefusedWhileSharded) {
  run_ranks(GetParam(), [](World& world) {
    auto net = make_net<StackImpl>();
    const auto view = net->last->weight.detach().view({-1});
    Twin<StackImpl> twin(make_net<StackImpl>(), net);
    if (world.size() > 1) {
      expect_throws(
          [&] { (void)view.sum().item<double>(); },
          {"parameter 'last.weight' is sharded"});
    }
    const auto scope = twin.engine.gather();
    EXPECT_EQ(
        view.sum().item<double>(),
        twin.plain->last->weight.sum().item<double>());
  });
}

TEST_P(StorageTraps, SaveThrowsOrIsRight) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto check_saved = [&](std::stringstream& file) {
      auto loaded = make_net<StackImpl>();
      {
        const at::NoGradGuard guard;
        for (auto& parameter : loaded->parameters()) {
          parameter.zero_();
        }
      }
      torch::load(loaded, file);
      const auto got = loaded->named_parameters();
      for (const auto& item : twin.plain->named_parameters()) {
        EXPECT_TRUE(torch::allclose(got[item.key()], item.value(), 1e-9, 1e-11))
            << item.key();
      }
    };
    for (int step = 0; step < 2; ++step) {
      twin.train(step);
      std::stringstream file;
      if (world.size() > 1) {
        expect_throws(
            [&] { torch::save(twin.wrapped, file); },
            {"is sharded", "for_each_parameter"});
      }
      std::stringstream whole;
      {
        const auto scope = twin.engine.gather();
        torch::save(twin.wrapped, whole);
      }
      check_saved(whole);
    }
  });
}

TEST_P(StorageTraps, ReadingInAScopeIsNotCollective) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 8; ++step) {
      const auto before = twin.engine.statistics().on_demand_unshards;
      if (step < 2 || step > 4) {
        const auto scope = twin.engine.gather();
        if (world.rank() == 0) {
          const at::NoGradGuard guard;
          EXPECT_GT(twin.wrapped->last->weight.norm().item<double>(), 0);
          EXPECT_GT(twin.wrapped->first->bias.norm().item<double>(), 0);
        }
        if (world.rank() == world.size() - 1) {
          EXPECT_GT(
              twin.wrapped->blocks[1]->up->weight.norm().item<double>(), 0);
        }
      }
      twin.train(step);
      if (step > 1) {
        EXPECT_EQ(twin.engine.statistics().on_demand_unshards, before)
            << "step " << step;
      }
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(StorageTraps, PagesThatStayedOverAStepAreNotUsedAgain) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto x = batch_of(50, 0);
    for (int step = 0; step < 5; ++step) {
      twin.plain_backward(step, mean_square);
      twin.wrapped_backward(step, mean_square);
      {
        // Leaves pages behind right before the weights change.
        const at::NoGradGuard guard;
        twin.wrapped->forward(x);
      }
      twin.step();
      const at::NoGradGuard guard;
      EXPECT_TRUE(torch::allclose(
          twin.wrapped->forward(x), twin.plain->forward(x), 1e-9, 1e-11))
          << "step " << step;
    }
    (void)world;
  });
}

TEST_P(StorageTraps, EvaluationBetweenSteps) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 6; ++step) {
      for (int batch = 0; batch < (step == 4 ? 1 : 3); ++batch) {
        const at::NoGradGuard guard;
        const auto x = batch_of(200 + batch, twin.rank());
        EXPECT_TRUE(torch::allclose(
            twin.wrapped->forward(x), twin.plain->forward(x), 1e-9, 1e-11));
      }
      twin.train(step);
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

// ---- the end

TEST_P(StorageTraps, UnwrapGivesTheModuleBack) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      twin.train(step);
    }
    twin.wrapped_backward(3, mean_square);
    twin.engine.unwrap();
    expect_throws([&] { twin.engine.step(); }, {"step", "unwrapped"});
    for (const auto& item : twin.wrapped->named_parameters()) {
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
      EXPECT_FALSE(has_page_key(item.value())) << item.key();
      EXPECT_NE(item.value().data_ptr(), nullptr);
      EXPECT_TRUE(torch::allclose(
          item.value(),
          twin.plain->named_parameters()[item.key()],
          1e-9,
          1e-11));
    }
    { const Engine gone = std::move(twin.engine); }
    // It trains as any module does, without the other ranks.
    auto twice = make_net<StackImpl>();
    {
      const at::NoGradGuard guard;
      for (const auto& item : twin.plain->named_parameters()) {
        twice->named_parameters()[item.key()].copy_(item.value());
      }
    }
    torch::optim::SGD expected_sgd(
        twice->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD sgd(
        twin.wrapped->parameters(), torch::optim::SGDOptions(0.1));
    if (world.rank() == 0) {
      for (int step = 0; step < 2; ++step) {
        expected_sgd.zero_grad();
        sgd.zero_grad();
        mean_square(*twice, batch_of(step, 0)).backward();
        mean_square(*twin.wrapped, batch_of(step, 0)).backward();
        expected_sgd.step();
        sgd.step();
      }
      for (const auto& item : twin.wrapped->named_parameters()) {
        EXPECT_TRUE(torch::allclose(
            item.value(), twice->named_parameters()[item.key()], 1e-9, 1e-11))
            << item.key();
      }
    }
  });
}

TEST_P(StorageTraps, UnwrapThenWrapAgain) {
  run_ranks(GetParam(), [](World&) {
    auto plain = make_net<StackImpl>();
    auto net = make_net<StackImpl>();
    for (int round = 0; round < 3; ++round) {
      Twin<StackImpl> twin(plain, net);
      twin.train(2 * round);
      twin.train(2 * round + 1);
      twin.expect_same_parameters("in round " + std::to_string(round));
      twin.engine.unwrap();
    }
  });
}

TEST_P(StorageTraps, EngineGoneWithoutUnwrap) {
  run_ranks(GetParam(), [](World& world) {
    auto net = make_net<StackImpl>();
    {
      Twin<StackImpl> twin(make_net<StackImpl>(), net);
      twin.train(0);
      mean_square(*net, batch_of(1, world.rank())).backward();
    }
    const std::initializer_list<const char*> parts{
        "parameter 'first.", "gone", "unwrap()"};
    expect_throws([&] { mean_square(*net, batch_of(2, world.rank())); }, parts);
    expect_throws([&] { (void)net->first->weight.data_ptr(); }, parts);
    for (const auto& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
    expect_throws(
        [&] { wrap(net, group_per_layer()); }, {"parameter 'first.", "gone"});
  });
}

TEST_P(StorageTraps, GradientsKeptAfterTheEngineAreAnError) {
  run_ranks(GetParam(), [](World& world) {
    at::Tensor gradient;
    {
      Twin<StackImpl> twin;
      mean_square(*twin.wrapped, batch_of(1, world.rank())).backward();
      gradient = twin.wrapped->last->weight.grad();
    }
    expect_throws([&] { (void)gradient.norm().item<double>(); }, {"gone"});
  });
}

TEST(StorageTrapsOnce, TwoEnginesShareOneRegistration) {
  run_ranks(2, [](World&) {
    Twin<StackImpl> one;
    Twin<StackImpl> two;
    ensure_page_key_registered();
    for (int step = 0; step < 3; ++step) {
      one.train(step);
      two.train(step + 10);
    }
    one.expect_same_parameters();
    two.expect_same_parameters();
  });
}

namespace {

void do_nothing(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet{c10::DispatchKey::TESTING_ONLY_GenericWrapper}};
  op.callBoxed(stack);
}

} // namespace

TEST(StorageTrapsOnce, KeyThatAnotherLibraryHolds) {
  run_ranks(1, [](World&) {
    torch::Library other(
        torch::Library::IMPL,
        "_",
        c10::DispatchKey::TESTING_ONLY_GenericWrapper,
        __FILE__,
        __LINE__);
    other.fallback(torch::CppFunction::makeFromBoxedFunction<&do_nothing>());
    auto net = make_net<StackImpl>();
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_throws(
          [&] { wrap(net, group_per_layer()); },
          {"another library", "TESTING_ONLY_GenericWrapper"});
    }
    EXPECT_TRUE(net->forward(batch_of(0, 0)).defined());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, StorageTraps, ::testing::Range(1, 4));

} // namespace tessera::testing
