// SPDX-License-Identifier: Apache-2.0
// Modules that are built without memory, and what becomes of them.
#include "tessera/sharding/lazy/lazy.h"

#include "engine/stranger_models.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/paging/pager.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>

namespace tessera::sharding::lazy_test {

namespace {

using torch::nn::Module;

/// Everything is deferred, whatever its size.
LazyOptions all_lazy() {
  LazyOptions options;
  options.min_numel = 0;
  options.seed = 7;
  return options;
}

/// A module of one parameter, made by `build`.
struct One : Module {
  template <typename Build>
  explicit One(const Build& build) {
    weight = register_parameter("weight", build());
  }
  at::Tensor weight;
};

/// The parameter that `build` makes, as materialize() gives it.
template <typename Build>
at::Tensor made_lazily(
    const Build& build,
    const LazyOptions& options = all_lazy()) {
  const auto module =
      lazy([&] { return std::make_shared<One>(build); }, options);
  EXPECT_TRUE(is_deferred(module->weight));
  materialize(*module);
  EXPECT_FALSE(is_deferred(module->weight));
  return module->weight.detach();
}

/// What `build` makes has the same bits lazily as it has at once.
template <typename Build>
void expect_as_made_at_once(const Build& build) {
  const at::Tensor expected = build().detach();
  const at::Tensor got = made_lazily(build);
  EXPECT_EQ(got.strides(), expected.strides());
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(torch::equal(got, expected)) << got << expected;
}

void expect_near(double got, double want, double tolerance) {
  EXPECT_NEAR(got, want, tolerance);
}

/// Every kind of initialiser over several pieces and groups.
struct MixtureImpl : Module {
  MixtureImpl() {
    auto scaled = torch::randn({300, 131}) * 0.02;
    register_parameter("scaled", scaled);
    auto erf = torch::empty({40'000}).uniform_(-0.9, 0.9).erfinv_().mul_(0.1);
    erf.narrow(0, 777, 20'011).add_(1);
    register_parameter("erf", erf);
    auto orthogonal = torch::empty({90, 70});
    torch::nn::init::orthogonal_(orthogonal);
    register_parameter("orthogonal", orthogonal);
    register_parameter("half", torch::randn({5'003}).to(torch::kBFloat16));
    auto big = torch::randn({2, 20'000});
    register_parameter("low", big[0]);
    register_parameter("high", big[1]);
    register_parameter("small", torch::randn({5}));
    register_module("rnn", torch::nn::LSTM(70, 40));
    register_module(
        "layer",
        torch::nn::TransformerEncoder(
            torch::nn::TransformerEncoderLayer(
                torch::nn::TransformerEncoderLayerOptions(16, 2)
                    .dim_feedforward(300)),
            2));
    register_module("bert", strangers::Gpt(500, 24, 2, 16));
  }
};
TORCH_MODULE(Mixture);

Mixture lazy_mixture() {
  torch::manual_seed(11);
  return lazy([] { return Mixture(); });
}

} // namespace

TEST(Lazy, SameBitsOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [](World& world) {
      const Mixture full = lazy_mixture();
      materialize(*full);
      Mixture sharded = lazy_mixture();
      MemoryLedger ledger;
      PagerOptions options;
      options.groups.min_group_numel = 0;
      Pager pager(world, *sharded, options, ledger);
      pager.unwrap();
      const auto got = sharded->named_parameters();
      for (const auto& item : full->named_parameters()) {
        EXPECT_TRUE(torch::equal(got[item.key()], item.value())) << item.key();
        EXPECT_TRUE(item.value().isfinite().all().item<bool>()) << item.key();
      }
    });
  }
}

TEST(Lazy, ASeedDeterminesAllTensorsAndNothingElse) {
  const auto make = [](uint64_t seed) {
    Mixture net = lazy([] { return Mixture(); }, {.seed = seed});
    materialize(*net);
    return net;
  };
  torch::manual_seed(1);
  const at::Tensor next = torch::rand({3});
  torch::manual_seed(1);
  const Mixture first = make(20);
  EXPECT_TRUE(torch::equal(torch::rand({3}), next));
  const auto got = make(20)->named_parameters();
  for (const auto& item : first->named_parameters()) {
    EXPECT_TRUE(torch::equal(got[item.key()], item.value())) << item.key();
  }
  EXPECT_FALSE(torch::equal(
      make(21)->named_parameters()["small"],
      first->named_parameters()["small"]));
}

TEST(Lazy, RanksStartFromTheSeedOfRank0) {
  tests::run_ranks(2, [](World& world) {
    LazyOptions options;
    options.seed = 20;
    const Mixture expected = lazy([] { return Mixture(); }, options);
    materialize(*expected);
    options.seed = 20 + world.rank();
    Mixture net = lazy([] { return Mixture(); }, options);
    MemoryLedger ledger;
    Pager pager(world, *net, {}, ledger);
    pager.unwrap();
    const auto got = net->named_parameters();
    for (const auto& item : expected->named_parameters()) {
      if (item.value().numel() >= options.min_numel) {
        EXPECT_TRUE(torch::equal(got[item.key()], item.value())) << item.key();
      }
    }
  });
}

TEST(Lazy, OnAllRanksOrOnNone) {
  tests::run_ranks(2, [](World& world) {
    const Mixture net = world.rank() == 0 ? Mixture() : lazy_mixture();
    MemoryLedger ledger;
    expect_error(
        [&] { Pager(world, *net.ptr(), {}, ledger); },
        {"rank 1 differs", "trained, lazy on rank 1"});
  });
}

TEST(Lazy, IgnoredParametersGetTheirMemoryInWrap) {
  tests::run_ranks(2, [](World& world) {
    const Mixture full = lazy_mixture();
    materialize(*full);
    Mixture net = lazy_mixture();
    MemoryLedger ledger;
    PagerOptions options;
    options.modules = {{.path = "bert|scaled", .options = {.ignored = true}}};
    const Pager pager(world, *net, options, ledger);
    const auto got = net->named_parameters();
    for (const char* name : {"bert.wte.weight", "scaled"}) {
      EXPECT_TRUE(torch::equal(got[name], full->named_parameters()[name]))
          << name;
    }
  });
}

TEST(Lazy, FactoriesAndFills) {
  expect_as_made_at_once([] { return torch::zeros({3, 5}); });
  expect_as_made_at_once([] { return torch::ones({3, 5}, torch::kDouble); });
  expect_as_made_at_once([] { return torch::full({4}, 2.5); });
  expect_as_made_at_once([] { return torch::empty({4}).fill_(3); });
  expect_as_made_at_once(
      [] { return torch::empty({4}).fill_(torch::tensor(0.5)); });
  expect_as_made_at_once([] { return torch::zeros({4}).new_full({2}, 3); });
  expect_as_made_at_once([] { return torch::full_like(torch::zeros({3}), 2); });
  expect_as_made_at_once([] {
    return torch::ones({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast);
  });
}

TEST(Lazy, WritesToViews) {
  expect_as_made_at_once([] {
    auto w = torch::ones({5, 4});
    w[2].zero_(); // the padding of an embedding
    w.narrow(0, 3, 2).fill_(7);
    w.select(1, 1).fill_(-1); // a column: not a range
    w.t()[3].mul_(10);
    return w;
  });
  expect_as_made_at_once([] {
    auto w = torch::zeros({6});
    w.narrow(0, 2, 2).fill_(1); // the forget gate of an LSTM
    w.add_(0.25).mul_(3).clamp_(0, 3.5);
    return w;
  });
  expect_as_made_at_once([] {
    auto w = torch::zeros({3, 4});
    w.index_put_({torch::indexing::Slice(), 2}, torch::arange(3.0));
    w.index_put_({torch::tensor({0, 1})}, torch::ones({2, 4}));
    w[1][1] = 9;
    w[0].copy_(w[2]);
    return w;
  });
}

TEST(Lazy, ArithmeticOnLazyTensors) {
  expect_as_made_at_once([] {
    const auto a = torch::full({3, 4}, 0.3);
    return (a * 2 + a.exp()).to(torch::kBFloat16);
  });
  expect_as_made_at_once([] {
    auto a = torch::full({3, 3}, 2.0);
    const auto b = a * a; // what a was then
    a.copy_(b);
    a.add_(b);
    return a;
  });
  expect_as_made_at_once([] {
    auto a = torch::ones({4, 4}).triu(1);
    return torch::cat({a, a.t().clone()}).contiguous();
  });
  expect_as_made_at_once([] {
    const auto a = torch::ones({3, 3});
    const auto total = a.sum().item<float>(); // read while it is built
    return torch::full({2}, total);
  });
}

TEST(Lazy, CapturesWhatItCopiesFrom) {
  expect_as_made_at_once([] {
    auto source = torch::arange(12.0).view({3, 4});
    auto w = torch::empty({3, 4});
    w.copy_(source);
    source.zero_();
    return w;
  });
}

TEST(Lazy, RandomNumbersAreAsAskedFor) {
  const auto uniform = made_lazily([] {
    return torch::empty({300, 300}).uniform_(-2, 4);
  });
  expect_near(uniform.mean().item<double>(), 1, 0.03); // 5 sigma: 0.029
  EXPECT_GE(uniform.min().item<double>(), -2);
  EXPECT_LE(uniform.max().item<double>(), 4);
  const auto normal = made_lazily([] {
    return torch::randn({300, 300}) * 0.5 + 3;
  });
  expect_near(normal.mean().item<double>(), 3, 0.009); // 5 sigma: 0.0083
  expect_near(normal.std().item<double>(), 0.5, 0.006); // 5 sigma: 0.0059
  // Another operator, another seed: other numbers.
  auto options = all_lazy();
  const auto two = [] {
    return torch::stack({torch::randn({50}), torch::randn({50})});
  };
  const auto first = made_lazily(two, options);
  EXPECT_FALSE(torch::equal(first[0], first[1]));
  EXPECT_TRUE(torch::equal(first, made_lazily(two, options)));
  options.seed = 8;
  EXPECT_FALSE(torch::equal(first, made_lazily(two, options)));
  // Without a seed, LibTorch's generator decides.
  options.seed.reset();
  torch::manual_seed(3);
  const auto third = made_lazily(two, options);
  EXPECT_FALSE(torch::equal(third, made_lazily(two, options)));
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(third, made_lazily(two, options)));
}

TEST(Lazy, OrthogonalAndOthersThatAreNotElementwise) {
  const auto q = made_lazily([] {
    auto w = torch::empty({6, 9});
    torch::nn::init::orthogonal_(w, 2);
    return w;
  });
  EXPECT_TRUE(torch::allclose(q.matmul(q.t()), 4 * torch::eye(6), 1e-5, 1e-5));
  expect_as_made_at_once([] {
    auto w = torch::empty({4, 6});
    torch::nn::init::eye_(w);
    return w;
  });
  expect_as_made_at_once([] {
    auto w = torch::empty({4, 2, 3});
    torch::nn::init::dirac_(w);
    return w;
  });
  const auto coins = made_lazily([] {
    return torch::empty({50, 50}).bernoulli_(0.3);
  });
  expect_near(coins.mean().item<double>(), 0.3, 0.046); // 5 sigma
}

TEST(Lazy, BuffersAreRealAndRight) {
  struct Net : Module {
    Net() {
      register_parameter("weight", torch::randn({8, 8}));
      auto table = torch::zeros({6, 4});
      const auto position = torch::arange(6.0).unsqueeze(1);
      table.index_put_(
          {torch::indexing::Slice(), torch::indexing::Slice(0, 4, 2)},
          torch::sin(position * torch::full({2}, 0.5)));
      register_buffer("table", table);
      register_buffer("mask", torch::ones({5, 5}, torch::kBool).triu(1));
      register_buffer(
          "bias", torch::full({5, 5}, -INFINITY).triu(1).unsqueeze(0));
      register_module("norm", torch::nn::BatchNorm1d(8));
      unregistered = torch::linspace(0, 1, 5) * torch::ones({5});
    }
    at::Tensor unregistered;
  };
  const Net expected;
  const auto net = lazy([] { return std::make_shared<Net>(); }, all_lazy());
  const auto buffers = net->named_buffers();
  for (const auto& item : expected.named_buffers()) {
    ASSERT_FALSE(is_deferred(buffers[item.key()])) << item.key();
    EXPECT_TRUE(torch::equal(buffers[item.key()], item.value())) << item.key();
  }
  EXPECT_TRUE(torch::equal(net->unregistered, expected.unregistered));
  EXPECT_TRUE(is_deferred(net->named_parameters()["weight"]));
  EXPECT_TRUE(is_deferred(net->named_parameters()["norm.weight"]));
}

TEST(Lazy, WeightsOf80GigabytesTakeAFewMegabytes) {
  runtime::install_cpu_memory_counter();
  runtime::reset_cpu_bytes_peak();
  const int64_t before = runtime::cpu_bytes_live();
  struct Net : Module {
    Net()
        : first(register_module("first", torch::nn::Linear(100'000, 100'000))),
          table(register_module(
              "table",
              torch::nn::Embedding(torch::nn::EmbeddingOptions(100'000, 100'000)
                                       .padding_idx(3)))) {}
    torch::nn::Linear first;
    torch::nn::Embedding table;
  };
  const auto net = lazy([] { return std::make_shared<Net>(); });
  EXPECT_EQ(net->first->weight.storage().nbytes(), 40'000'000'000);
  EXPECT_LT(runtime::cpu_bytes_peak() - before, int64_t{2} << 20);
  // A slice of it can be made, the padding included.
  const at::Tensor slice = torch::empty({100'010});
  deferred_init(*net->table->weight.storage().unsafeGetStorageImpl())
      ->fill(slice, 299'995);
  EXPECT_EQ(slice.narrow(0, 5, 100'000).abs().max().item<float>(), 0);
  EXPECT_EQ(slice.eq(0).sum().item<int64_t>(), 100'000);
}

TEST(Lazy, TheLastInitialiserIsTheOnlyOneThatRuns) {
  const auto module = lazy(
      [] {
        return std::make_shared<One>([] {
          auto w = torch::empty({100, 100});
          torch::nn::init::orthogonal_(w);
          torch::nn::init::normal_(w, 0, 0.02);
          return w;
        });
      },
      all_lazy());
  // A slice alone: nothing of the decomposition is left.
  const at::Tensor slice = torch::empty({10});
  const auto* init =
      deferred_init(*module->weight.storage().unsafeGetStorageImpl());
  init->fill(slice, 17);
  materialize(*module);
  EXPECT_TRUE(
      torch::equal(slice, module->weight.detach().flatten().narrow(0, 17, 10)));
}

TEST(Lazy, TiedWeightsStayTied) {
  struct Net : Module {
    Net()
        : table(register_module("table", torch::nn::Embedding(20, 8))),
          head(register_module("head", torch::nn::Linear(8, 20))) {
      head->weight = head->register_parameter("tied", table->weight);
    }
    torch::nn::Embedding table;
    torch::nn::Linear head;
  };
  const auto net = lazy([] { return std::make_shared<Net>(); }, all_lazy());
  EXPECT_TRUE(net->head->weight.is_same(net->table->weight));
  materialize(*net);
  EXPECT_EQ(net->head->weight.data_ptr(), net->table->weight.data_ptr());
}

TEST(Lazy, DoesNotDependOnTheNumberOfThreads) {
  const Mixture four = lazy_mixture();
  materialize(*four);
  const int before = torch::get_num_threads();
  torch::set_num_threads(1);
  const Mixture one = lazy_mixture();
  materialize(*one);
  torch::set_num_threads(before);
  const auto got = one->named_parameters();
  for (const auto& item : four->named_parameters()) {
    EXPECT_TRUE(torch::equal(got[item.key()], item.value())) << item.key();
  }
}

TEST(Lazy, WhatCannotBeDeferredIsNamed) {
  LazyOptions options = all_lazy();
  options.max_read_numel = 10;
  const auto refused = [&](const auto& build,
                           std::initializer_list<const char*> parts) {
    expect_error(
        [&] { lazy([&] { return std::make_shared<One>(build); }, options); },
        parts);
  };
  refused(
      [] {
        const auto w = torch::randn({4, 4});
        return w * w.sum().item<float>();
      },
      {"aten::_local_scalar_dense", "tessera::lazy"});
  refused(
      [] {
        return torch::randn({4, 4}).nonzero().to(torch::kFloat);
      },
      {"aten::nonzero", "16 elements", "max_read_numel"});
  refused(
      [] {
        return torch::randn({4, 4}).resize_({9});
      },
      {"aten::resize_", "cannot be deferred"});
  // Afterwards nothing is recorded any more.
  EXPECT_FALSE(is_deferred(torch::empty({4})));
}

TEST(Lazy, ElementsByPointerNeedMemory) {
  try {
    lazy(
        [] {
          return std::make_shared<One>([] {
            auto w = torch::zeros({4, 4});
            w.accessor<float, 2>()[1][1] = 3;
            return w;
          });
        },
        all_lazy());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("made under tessera::lazy"),
        std::string::npos)
        << error.what();
  }
  // Small tensors have it.
  const auto module = lazy([] {
    return std::make_shared<One>([] {
      auto w = torch::zeros({4, 4});
      w.accessor<float, 2>()[1][1] = 3;
      return w;
    });
  });
  EXPECT_EQ(module->weight.sum().item<float>(), 3);
}

TEST(Lazy, UseBeforeWrapSaysWhatToDo) {
  auto module = lazy([] { return torch::nn::Linear(8, 8); }, all_lazy());
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { module->to(torch::kDouble); },
           [&] {
             module->forward(torch::ones({2, 8}));
           },
           [&] { module->weight.data().mul_(2); }}) {
    try {
      use();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("parameter '"), std::string::npos) << message;
      EXPECT_NE(message.find("tessera::materialize"), std::string::npos)
          << message;
    }
  }
}

TEST(Lazy, NotInsideOfItself) {
  expect_error(
      [] { lazy([] { return lazy([] { return torch::nn::Linear(3, 3); }); }); },
      {"inside tessera::lazy"});
}

} // namespace tessera::sharding::lazy_test
