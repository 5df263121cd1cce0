// SPDX-License-Identifier: Apache-2.0
// Parameters that share storages, are slices of tensors, or have two names.
#include "engine/twin.h"
#include "support/ranks.h"

namespace tessera::tests::storage_layout_test {

namespace {

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

} // namespace

class StorageLayout : public ::testing::TestWithParam<int> {};

TEST_P(StorageLayout, WeightsOfALstmInOneStorage) {
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

TEST_P(StorageLayout, SlicesOfOneTensorUnderTwoChildren) {
  run_ranks(GetParam(), [](World&) {
    Twin<Slices> twin(seeded<Slices>(), seeded<Slices>());
    expect_trains_like_plain(twin);
  });
}

TEST_P(StorageLayout, OneWeightUnderTwoChildren) {
  run_ranks(GetParam(), [](World&) {
    Twin<TiedChildren> twin(seeded<TiedChildren>(), seeded<TiedChildren>());
    expect_trains_like_plain(twin);
  });
}

TEST_P(StorageLayout, ParametersThatOverlapAreRefused) {
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

TEST_P(StorageLayout, WrongOptionsLeaveTheModuleWhole) {
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

TEST_P(StorageLayout, AWrappedModuleIsNotWrappedAgain) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    expect_throws(
        [&] { wrap(twin.wrapped, group_per_layer()); },
        {"'first.weight'", "already held by another engine", "unwrap()"});
    expect_trains_like_plain(twin, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, StorageLayout, ::testing::Range(1, 4));

} // namespace tessera::tests::storage_layout_test
