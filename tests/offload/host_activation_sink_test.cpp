// SPDX-License-Identifier: Apache-2.0
// Models that know nothing of it, with what they save on the host: the same
// bits, within the budget, and nothing left behind.
#include "tessera/offload/host_activation_sink.h"

#include "support/expect_error.h"
#include "tessera/runtime/memory/cpu_memory_counter.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

namespace {

namespace F = torch::nn::functional;

/// A function of its parameters, the same at every call.
struct Subject {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> loss;
};

template <typename Holder, typename Loss>
Subject subject(const std::string& name, Holder holder, const Loss& loss) {
  return {name, holder.ptr(), [holder, loss]() mutable {
            torch::manual_seed(3);
            return loss(holder);
          }};
}

std::vector<Subject> subjects() {
  torch::manual_seed(1);
  std::vector<Subject> all;
  torch::nn::Sequential mlp(
      torch::nn::Linear(12, 20),
      torch::nn::GELU(),
      torch::nn::Dropout(0.3),
      torch::nn::Linear(20, 20),
      torch::nn::Tanh(),
      torch::nn::Linear(20, 5));
  all.push_back(subject("mlp", mlp, [](torch::nn::Sequential& net) {
    return F::cross_entropy(
        net->forward(torch::randn({9, 12})), torch::arange(9) % 5);
  }));
  torch::nn::Sequential conv(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)),
      torch::nn::BatchNorm2d(6),
      torch::nn::ReLU(torch::nn::ReLUOptions(true)), // in place
      torch::nn::MaxPool2d(2),
      torch::nn::Conv2d(6, 4, 3),
      torch::nn::Flatten(),
      torch::nn::Linear(36, 3));
  all.push_back(subject("conv", conv, [](torch::nn::Sequential& net) {
    return net->forward(torch::randn({4, 3, 10, 10})).square().mean();
  }));
  torch::nn::MultiheadAttention attention(
      torch::nn::MultiheadAttentionOptions(8, 2).dropout(0.2));
  all.push_back(subject("attention", attention, [](auto& net) {
    const auto x = torch::randn({7, 3, 8});
    const auto mask = torch::ones({7, 7}, torch::kBool).triu(1);
    return std::get<0>(net->forward(x, x, x, {}, true, mask)).square().sum();
  }));
  torch::nn::LSTM lstm(
      torch::nn::LSTMOptions(5, 8).num_layers(2).dropout(0.2).bidirectional(
          true));
  all.push_back(subject("lstm", lstm, [](torch::nn::LSTM& net) {
    return std::get<0>(net->forward(torch::randn({6, 3, 5}))).square().sum();
  }));
  torch::nn::LSTMCell cell(5, 8); // changes parts of a storage in place
  all.push_back(subject("cell", cell, [](torch::nn::LSTMCell& net) {
    auto [hidden, state] = net->forward(torch::randn({3, 5}));
    for (int i = 0; i < 4; ++i) {
      std::tie(hidden, state) =
          net->forward(torch::randn({3, 5}), std::tuple(hidden, state));
    }
    return hidden.square().sum();
  }));
  return all;
}

std::map<std::string, at::Tensor> gradients(const Subject& subject) {
  subject.module->zero_grad();
  subject.loss().backward();
  std::map<std::string, at::Tensor> result;
  for (const auto& item : subject.module->named_parameters()) {
    result[item.key()] = item.value().grad().clone();
  }
  return result;
}

bool held_by(const torch::nn::Module& module, const c10::StorageImpl& storage) {
  const auto is_its = [&](const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl() == &storage;
  };
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_its) ||
         std::any_of(buffers.begin(), buffers.end(), is_its);
}

HostActivationSinkOptions options(
    std::optional<int64_t> device_bytes,
    int64_t prefetch_bytes = 0) {
  HostActivationSinkOptions options;
  options.device_bytes = device_bytes;
  options.prefetch_bytes = prefetch_bytes;
  options.min_tensor_bytes = 0;
  return options;
}

std::shared_ptr<HostActivationSink> make_sink(
    const HostActivationSinkOptions& options) {
  return std::make_shared<HostActivationSink>(options);
}

void expect_empty(const HostActivationSink& sink, const std::string& when) {
  const auto statistics = sink.statistics();
  EXPECT_EQ(statistics.live_device_bytes, 0) << when;
  EXPECT_EQ(statistics.live_host_bytes, 0) << when;
  EXPECT_EQ(statistics.live_storages, 0) << when;
}

/// A chain of n operators that each save one [256] float tensor: 1 KiB.
at::Tensor chain(at::Tensor x, int n) {
  for (int i = 0; i < n; ++i) {
    x = x.exp().neg();
  }
  return x.sum();
}

at::Tensor chain_input() {
  return torch::linspace(-1, 0, 256).requires_grad_();
}

} // namespace

TEST(HostActivationSink, EqualGradientsWithinEveryBudget) {
  for (const Subject& subject : subjects()) {
    const auto expected = gradients(subject);
    const auto run = [&](std::optional<int64_t> budget, int64_t prefetch) {
      auto within = options(budget, prefetch);
      within.passes = [&](const c10::StorageImpl& storage) {
        return held_by(*subject.module, storage);
      };
      const auto sink = make_sink(within);
      const SavedTensorScope scope(sink);
      const std::string what = subject.name + " within " +
                               std::to_string(budget.value_or(-1)) +
                               ", prefetch " + std::to_string(prefetch);
      for (int step = 0; step < 2; ++step) {
        for (const auto& [name, gradient] : gradients(subject)) {
          EXPECT_TRUE(torch::equal(gradient, expected.at(name)))
              << what << ": " << name;
        }
        expect_empty(*sink, what);
      }
      return sink->statistics();
    };
    const auto unlimited = run(std::nullopt, 0);
    EXPECT_EQ(unlimited.bytes_to_host, 0);
    EXPECT_EQ(unlimited.stalls, 0);
    const int64_t all = unlimited.peak_device_bytes;
    // With nothing allowed: the most that one operator needs at once.
    const int64_t least = run(0, 0).peak_device_bytes;
    EXPECT_GT(least, 0);
    EXPECT_LT(least, all);
    for (const double share : {1.0, 0.7, 0.3, 0.05}) {
      const auto budget = static_cast<int64_t>(share * double(all));
      for (const int64_t prefetch : {int64_t{0}, int64_t{3000}}) {
        const auto got = run(budget, prefetch);
        EXPECT_LE(got.peak_device_bytes, std::max(budget, least))
            << subject.name << " within " << budget;
        EXPECT_EQ(got.bytes_to_device == 0, share == 1.0);
        if (prefetch == 0) {
          EXPECT_EQ(got.bytes_prefetched, 0);
        }
      }
    }
  }
}

TEST(HostActivationSink, TheOldestLeaveAndNoMoreThanNeeded) {
  const auto sink = make_sink(options(4096));
  const SavedTensorScope scope(sink);
  auto loss = chain(chain_input(), 10);
  auto statistics = sink->statistics();
  EXPECT_EQ(statistics.live_device_bytes, 4096);
  EXPECT_EQ(statistics.peak_device_bytes, 4096);
  EXPECT_EQ(statistics.live_host_bytes, 6 * 1024);
  loss.backward();
  statistics = sink->statistics();
  // The four newest were there; each of the others came when it was needed.
  EXPECT_EQ(statistics.stalls, 6);
  EXPECT_EQ(statistics.bytes_to_device, 6 * 1024);
  EXPECT_EQ(statistics.bytes_to_host, 6 * 1024);
  EXPECT_EQ(statistics.peak_device_bytes, 4096);
  EXPECT_EQ(statistics.peak_host_bytes, 6 * 1024);
}

TEST(HostActivationSink, PrefetchComesInTimeAndStaysWithinItsLimits) {
  for (const int64_t depth : {1024, 2048, 1 << 20}) {
    const auto sink = make_sink(options(4096, depth));
    const SavedTensorScope scope(sink);
    chain(chain_input(), 10).backward();
    const auto statistics = sink->statistics();
    EXPECT_EQ(statistics.stalls, 0) << depth;
    EXPECT_EQ(statistics.bytes_prefetched, 6 * 1024) << depth;
    EXPECT_EQ(statistics.bytes_to_device, 6 * 1024) << depth;
    EXPECT_LE(statistics.peak_device_bytes, 4096) << depth;
  }
}

TEST(HostActivationSink, WhatMustLeaveIsCopiedAtOnceFromTheSecondRoundOn) {
  const auto sink = make_sink(options(4096));
  const SavedTensorScope scope(sink);
  chain(chain_input(), 10).backward();
  auto loss = chain(chain_input(), 4); // not over the budget yet
  EXPECT_EQ(sink->statistics().live_host_bytes, 4096);
  EXPECT_EQ(sink->statistics().live_device_bytes, 4096);
  loss.backward();
  // That round had nothing to leave: the next one copies nothing ahead.
  loss = chain(chain_input(), 4);
  EXPECT_EQ(sink->statistics().live_host_bytes, 0);
}

TEST(HostActivationSink, MemoryIsReallyFreed) {
  install_cpu_memory_counter();
  const auto x = torch::randn({1 << 16}).requires_grad_(); // 256 KiB
  const auto bytes_after_forward = [&] {
    const int64_t before = cpu_bytes_live();
    const auto loss = chain(x, 20);
    return cpu_bytes_live() - before;
  };
  const int64_t plain = bytes_after_forward();
  EXPECT_GE(plain, 20 << 18);
  const auto sink = make_sink(options(4 << 18, 4 << 18));
  const SavedTensorScope scope(sink);
  chain(x, 20); // the host's slab is there
  EXPECT_LE(bytes_after_forward(), (4 << 18) + 4096);

  // In backward: the budget, two gradients, and the leaf's own.
  auto loss = chain(x, 20);
  const int64_t before = cpu_bytes_live();
  reset_cpu_bytes_peak();
  loss.backward();
  EXPECT_LE(cpu_bytes_peak() - before, (4 << 18) + 4096);
}

TEST(HostActivationSink, ABudgetTooSmallForATensorStillWorks) {
  const auto sink = make_sink(options(1000, 1 << 20));
  const SavedTensorScope scope(sink);
  auto loss = chain(chain_input(), 5);
  EXPECT_EQ(sink->statistics().live_device_bytes, 0);
  EXPECT_EQ(sink->statistics().peak_device_bytes, 0);
  loss.backward();
  // What an operator needs comes, one at a time.
  EXPECT_EQ(sink->statistics().peak_device_bytes, 1024);
  EXPECT_EQ(sink->statistics().bytes_prefetched, 0);
  expect_empty(*sink, "after backward");
}

TEST(HostActivationSink, SmallTensorsStayAndCount) {
  auto small = options(4096);
  small.min_tensor_bytes = 1025;
  const auto sink = make_sink(small);
  const SavedTensorScope scope(sink);
  auto loss = chain(chain_input(), 10);
  EXPECT_EQ(sink->statistics().live_device_bytes, 10 * 1024);
  EXPECT_EQ(sink->statistics().bytes_to_host, 0);
  loss.backward();
  expect_empty(*sink, "after backward");
}

TEST(HostActivationSink, AStorageThatIsSavedOftenIsCopiedOnce) {
  const auto sink = make_sink(options(0));
  const SavedTensorScope scope(sink);
  const auto leaf = torch::randn({8, 24}).requires_grad_();
  const auto x = leaf * 2;
  const auto parts = x.chunk(3, 1); // three views, not contiguous
  const auto scores = torch::mm(parts[0], parts[1].t());
  auto loss = torch::mm(scores, parts[2]).sum() + x.square().sum();
  EXPECT_EQ(
      sink->statistics().bytes_to_host,
      static_cast<int64_t>(x.nbytes() + scores.nbytes()));
  EXPECT_EQ(sink->statistics().live_storages, 2);
  loss.backward();
  const auto got = leaf.grad().clone();
  expect_empty(*sink, "after backward");

  const auto again = leaf.detach().clone().requires_grad_();
  {
    const auto off = make_sink(options(std::nullopt));
    const SavedTensorScope without(off);
    const auto y = again * 2;
    const auto p = y.chunk(3, 1);
    (torch::mm(torch::mm(p[0], p[1].t()), p[2]).sum() + y.square().sum())
        .backward();
  }
  EXPECT_TRUE(torch::equal(got, again.grad()));
}

TEST(HostActivationSink, ShapesComeBackAsTheyWere) {
  const auto sink = make_sink(options(0));
  torch::manual_seed(2);
  const auto whole = torch::randn({6, 5, 4});
  const std::vector<at::Tensor> tensors{
      whole.clone(),
      whole.clone().transpose(0, 2),
      whole.clone().narrow(1, 2, 2),
      whole.clone().slice(0, 0, 6, 2).permute({2, 0, 1}),
      torch::randn({3, 1}).expand({3, 7}),
      whole.clone().to(torch::kBFloat16),
      torch::randint(9, {5, 3}),
      whole > 0,
      torch::randn({4}, torch::kComplexFloat).conj(),
      torch::imag(torch::randn({4}, torch::kComplexFloat).conj()),
      torch::randn({}),
      torch::arange(24)
          .view({1, 2, 3, 4})
          .contiguous(at::MemoryFormat::ChannelsLast)};
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor copy = tensor.clone();
    auto saved = sink->take(tensor, false);
    ASSERT_EQ(sink->statistics().live_device_bytes, 0);
    for (int i = 0; i < 2; ++i) {
      const at::Tensor back = saved->give();
      EXPECT_EQ(back.sizes(), tensor.sizes());
      EXPECT_EQ(back.strides(), tensor.strides());
      EXPECT_EQ(back.storage_offset(), tensor.storage_offset());
      EXPECT_EQ(back.scalar_type(), tensor.scalar_type());
      EXPECT_EQ(back.is_conj(), tensor.is_conj());
      EXPECT_EQ(back.is_neg(), tensor.is_neg());
      EXPECT_NE(back.storage().data(), tensor.storage().data());
      EXPECT_TRUE(torch::equal(back, copy)) << tensor.toString();
    }
  }
}

TEST(HostActivationSink, SomeTensorsPass) {
  auto few = options(0);
  const auto buffer = torch::randn({64});
  const auto* kept = buffer.storage().unsafeGetStorageImpl();
  few.passes = [kept](const c10::StorageImpl& storage) {
    return &storage == kept;
  };
  const auto sink = make_sink(few);
  const auto parameter = torch::randn({4, 4}).requires_grad_();
  for (const at::Tensor& tensor :
       {buffer,
        buffer.view({8, 8}).t(),
        parameter,
        torch::empty({0, 3}),
        torch::eye(3).to_sparse(),
        torch::empty({2}, torch::kMeta)}) {
    const auto saved = sink->take(tensor, true);
    EXPECT_EQ(
        saved->give().unsafeGetTensorImpl()->has_storage(),
        tensor.unsafeGetTensorImpl()->has_storage());
    if (tensor.has_storage()) {
      EXPECT_TRUE(saved->give().is_alias_of(tensor) || tensor.numel() == 0);
    }
  }
  EXPECT_EQ(sink->statistics().tensors_passed, 6);
  EXPECT_EQ(sink->statistics().tensors_saved, 0);
}

TEST(HostActivationSink, ATensorThatIsChangedBetweenTwoSavesHasTwoCopies) {
  const auto sink = make_sink(options(0));
  const auto x = torch::ones({256});
  const auto first = sink->take(x, false);
  const auto same = sink->take(x, false);
  EXPECT_EQ(sink->statistics().live_storages, 1);
  x.add_(1);
  const auto second = sink->take(x, false);
  EXPECT_EQ(sink->statistics().live_storages, 2);
  EXPECT_EQ(first->give().sum().item<double>(), 256);
  EXPECT_EQ(same->give().sum().item<double>(), 256);
  EXPECT_EQ(second->give().sum().item<double>(), 512);
}

TEST(HostActivationSink, PartsThatCountTheirChangesApart) {
  const auto sink = make_sink(options(0));
  const auto x = torch::zeros({4, 8});
  const auto parts = x.unsafe_chunk(2, 1);
  const auto first = sink->take(parts[0].exp_(), false);
  const auto second = sink->take(parts[1].cos_().add_(1), false);
  EXPECT_TRUE(torch::equal(first->give(), torch::ones({4, 4})));
  EXPECT_TRUE(torch::equal(second->give(), torch::full({4, 4}, 2.0)));
}

TEST(HostActivationSink, AGraphThatIsKeptRunsSeveralTimes) {
  for (const Subject& subject : subjects()) {
    const auto expected = gradients(subject);
    const auto sink = make_sink(options(2000, 1000));
    const SavedTensorScope scope(sink);
    auto loss = subject.loss();
    for (int i = 0; i < 3; ++i) {
      subject.module->zero_grad();
      loss.backward({}, /*retain_graph=*/true);
      for (const auto& item : subject.module->named_parameters()) {
        EXPECT_TRUE(torch::equal(item.value().grad(), expected.at(item.key())))
            << subject.name << ": " << item.key();
      }
    }
    EXPECT_GT(sink->statistics().live_host_bytes, 0);
    loss.reset();
    expect_empty(*sink, subject.name);
  }
}

TEST(HostActivationSink, DoubleBackward) {
  const auto net = [](const at::Tensor& x) {
    const auto w = torch::linspace(-1, 1, 256).view({16, 16});
    return torch::tanh(x.mm(w)).mm(w.t()).exp().sum();
  };
  const auto second = [&] {
    const auto x = torch::linspace(0, 0.5, 256).view({16, 16}).requires_grad_();
    const auto gradient =
        torch::autograd::grad({net(x)}, {x}, {}, true, true)[0];
    gradient.square().sum().backward();
    return x.grad();
  };
  const auto expected = second();
  for (const int64_t budget : {0, 1500, 5000}) {
    const auto sink = make_sink(options(budget, budget));
    {
      const SavedTensorScope scope(sink);
      EXPECT_TRUE(torch::equal(second(), expected)) << budget;
    }
    EXPECT_GT(sink->statistics().bytes_to_host, 0);
    expect_empty(*sink, "double backward");
  }
}

TEST(HostActivationSink, NothingIsLeftAfterExceptions) {
  struct Fails : torch::autograd::Function<Fails> {
    static at::Tensor forward(
        torch::autograd::AutogradContext* context,
        const at::Tensor& x) {
      context->save_for_backward({x});
      return x.clone();
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext* context,
        const torch::autograd::variable_list& /*gradients*/) {
      context->get_saved_variables();
      TESSERA_FAIL("in mid-backward");
    }
  };
  const auto sink = make_sink(options(2048, 1024));
  const SavedTensorScope scope(sink);
  expect_error(
      [] {
        auto x = chain_input().exp();
        for (int i = 0;; ++i) {
          TESSERA_CHECK(i < 8, "in mid-forward");
          x = x.sigmoid();
        }
      },
      {"in mid-forward"});
  expect_empty(*sink, "after a forward that failed");
  expect_error(
      [] {
        const auto middle = Fails::apply(chain_input().exp().sin().exp());
        chain(middle, 8).backward();
      },
      {"in mid-backward"});
  expect_empty(*sink, "after a backward that failed");
}

TEST(HostActivationSink, WhatTheHostHasNoRoomForStays) {
  const auto expected = [] {
    const auto x = chain_input();
    chain(x, 7).backward();
    return x.grad();
  }();
  auto limited = options(0);
  limited.host_bytes = 4096;
  const auto sink = make_sink(limited);
  const SavedTensorScope scope(sink);
  const auto x = chain_input();
  auto loss = chain(x, 7);
  EXPECT_EQ(sink->statistics().live_host_bytes, 4096);
  EXPECT_EQ(sink->statistics().live_device_bytes, 3 * 1024);
  EXPECT_GT(sink->statistics().bytes_refused, 0);
  loss.backward();
  EXPECT_TRUE(torch::equal(x.grad(), expected));
  expect_empty(*sink, "after backward");
}

TEST(HostActivationSink, ToHostLeavesWhenTheNextOneComes) {
  const auto sink = make_sink(options(std::nullopt));
  const auto a = torch::randn({256});
  const auto b = torch::randn({256});
  auto saved_a = sink->take(a, true);
  EXPECT_EQ(sink->statistics().live_host_bytes, 1024); // copied, not gone
  EXPECT_EQ(sink->statistics().live_device_bytes, 1024);
  auto saved_b = sink->take(b, true);
  EXPECT_EQ(sink->statistics().live_host_bytes, 2048);
  EXPECT_EQ(sink->statistics().live_device_bytes, 1024);
  EXPECT_EQ(saved_b->give().storage().data(), b.storage().data());
  EXPECT_TRUE(torch::equal(saved_a->give(), a));
  saved_b.reset();
  saved_a.reset();
  expect_empty(*sink, "at the end");
}

TEST(HostActivationSink, AllAtOnceCopiesEverything) {
  auto all = options(2048, 2048);
  all.copy_at_once = true;
  const auto sink = make_sink(all);
  const SavedTensorScope scope(sink);
  auto loss = chain(chain_input(), 8);
  EXPECT_EQ(sink->statistics().live_host_bytes, 8 * 1024);
  EXPECT_EQ(sink->statistics().live_device_bytes, 2048);
  loss.backward();
  expect_empty(*sink, "after backward");
}

TEST(HostActivationSink, ProducersAreNamed) {
  const auto sink = make_sink(options(0));
  const SavedTensorScope scope(sink);
  const auto x = torch::ones({256}).requires_grad_();
  auto loss = (x * 2).tanh().square().sum();
  loss.backward();
  const auto rows = sink->saved_by_producer();
  ASSERT_EQ(rows.size(), 1);
  // tanh saves its result, and square the same storage as its argument.
  EXPECT_EQ(rows[0].producer, "TanhBackward0");
  EXPECT_EQ(rows[0].storages, 1);
  EXPECT_EQ(rows[0].bytes, 1024);
  EXPECT_EQ(rows[0].bytes_left, 1024);
  const std::string table = saved_activations_table(rows);
  EXPECT_NE(table.find("TanhBackward0"), std::string::npos) << table;
  EXPECT_NE(table.find("total"), std::string::npos) << table;
  x.exp(); // a new round
  EXPECT_EQ(sink->saved_by_producer()[0].producer, "ExpBackward0");
}

TEST(HostActivationSink, ThreadsShareABudget) {
  const auto expected = [] {
    const auto x = chain_input();
    chain(x, 12).backward();
    return x.grad();
  }();
  const auto sink = make_sink(options(6000, 3000));
  const SavedTensorScope scope(sink);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto x = chain_input();
        chain(x, 12).backward();
        wrong += torch::equal(x.grad(), expected) ? 0 : 1;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  expect_empty(*sink, "after the threads");
}

TEST(HostActivationSink, AGraphOutlivesSinkAndScope) {
  const auto x = chain_input();
  at::Tensor loss;
  {
    const auto sink = make_sink(options(2048));
    const SavedTensorScope scope(sink);
    loss = chain(x, 8);
  }
  loss.backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(HostActivationSink, WrongOptionsAreAnError) {
  expect_error([] { make_sink(options(-5)); }, {"device_bytes is -5"});
  expect_error([] { make_sink(options(5, -1)); }, {"prefetch_bytes -1"});
}

} // namespace tessera
