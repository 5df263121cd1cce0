// SPDX-License-Identifier: Apache-2.0
// Graphs whose saved tensors are on the host: whatever is done with them, they
// come back as they were, and nothing is left behind.
#include "offload/activations/saved_on_host.h"
#include "support/expect_error.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <atomic>
#include <thread>

namespace tessera::offload::saved_on_host_graphs_test {

TEST(SavedOnHost, AStorageThatIsSavedOftenIsCopiedOnce) {
  const auto sink = make_sink(options(0));
  const runtime::SavedTensorScope scope(sink);
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
    const runtime::SavedTensorScope without(off);
    const auto y = again * 2;
    const auto p = y.chunk(3, 1);
    (torch::mm(torch::mm(p[0], p[1].t()), p[2]).sum() + y.square().sum())
        .backward();
  }
  EXPECT_TRUE(torch::equal(got, again.grad()));
}

TEST(SavedOnHost, ShapesComeBackAsTheyWere) {
  const auto sink = make_sink(options(0));
  torch::manual_seed(2);
  const auto full = torch::randn({6, 5, 4});
  const std::vector<at::Tensor> tensors{
      full.clone(),
      full.clone().transpose(0, 2),
      full.clone().narrow(1, 2, 2),
      full.clone().slice(0, 0, 6, 2).permute({2, 0, 1}),
      torch::randn({3, 1}).expand({3, 7}),
      full.clone().to(torch::kBFloat16),
      torch::randint(9, {5, 3}),
      full > 0,
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

TEST(SavedOnHost, SomeTensorsPass) {
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

TEST(SavedOnHost, ATensorThatIsChangedBetweenTwoSavesHasTwoCopies) {
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

TEST(SavedOnHost, PartsThatCountTheirChangesApart) {
  const auto sink = make_sink(options(0));
  const auto x = torch::zeros({4, 8});
  const auto parts = x.unsafe_chunk(2, 1);
  const auto first = sink->take(parts[0].exp_(), false);
  const auto second = sink->take(parts[1].cos_().add_(1), false);
  EXPECT_TRUE(torch::equal(first->give(), torch::ones({4, 4})));
  EXPECT_TRUE(torch::equal(second->give(), torch::full({4, 4}, 2.0)));
}

TEST(SavedOnHost, AGraphThatIsKeptRunsSeveralTimes) {
  for (const Subject& subject : subjects()) {
    const auto expected = gradients(subject);
    const auto sink = make_sink(options(2000, 1000));
    const runtime::SavedTensorScope scope(sink);
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

TEST(SavedOnHost, DoubleBackward) {
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
      const runtime::SavedTensorScope scope(sink);
      EXPECT_TRUE(torch::equal(second(), expected)) << budget;
    }
    EXPECT_GT(sink->statistics().bytes_to_host, 0);
    expect_empty(*sink, "double backward");
  }
}

TEST(SavedOnHost, NothingIsLeftAfterExceptions) {
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
  const runtime::SavedTensorScope scope(sink);
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

TEST(SavedOnHost, ProducersAreNamed) {
  const auto sink = make_sink(options(0));
  const runtime::SavedTensorScope scope(sink);
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

TEST(SavedOnHost, ThreadsShareABudget) {
  const auto expected = [] {
    const auto x = chain_input();
    chain(x, 12).backward();
    return x.grad();
  }();
  const auto sink = make_sink(options(6000, 3000));
  const runtime::SavedTensorScope scope(sink);
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

TEST(SavedOnHost, AGraphOutlivesSinkAndScope) {
  const auto x = chain_input();
  at::Tensor loss;
  {
    const auto sink = make_sink(options(2048));
    const runtime::SavedTensorScope scope(sink);
    loss = chain(x, 8);
  }
  loss.backward();
  EXPECT_TRUE(x.grad().defined());
}

} // namespace tessera::offload::saved_on_host_graphs_test
