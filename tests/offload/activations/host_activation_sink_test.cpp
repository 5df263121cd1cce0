// SPDX-License-Identifier: Apache-2.0
// What models save, on the host: the same bits, within the budget.
#include "offload/activations/saved_on_host.h"
#include "support/expect_error.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <atomic>
#include <thread>

namespace tessera::offload::host_activation_sink_test {

TEST(HostActivationSink, EqualGradientsWithinEveryBudget) {
  for (const Subject& subject : subjects()) {
    const auto expected = gradients(subject);
    const auto run = [&](std::optional<int64_t> budget, int64_t prefetch) {
      auto within = options(budget, prefetch);
      within.passes = [&](const c10::StorageImpl& storage) {
        return held_by(*subject.module, storage);
      };
      const auto sink = make_sink(within);
      const runtime::SavedTensorScope scope(sink);
      const std::string label = subject.name + " within " +
                                std::to_string(budget.value_or(-1)) +
                                ", prefetch " + std::to_string(prefetch);
      for (int step = 0; step < 2; ++step) {
        for (const auto& [name, gradient] : gradients(subject)) {
          EXPECT_TRUE(torch::equal(gradient, expected.at(name)))
              << label << ": " << name;
        }
        expect_empty(*sink, label);
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
  const runtime::SavedTensorScope scope(sink);
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
    const runtime::SavedTensorScope scope(sink);
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
  const runtime::SavedTensorScope scope(sink);
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
  runtime::install_cpu_memory_counter();
  const auto x = torch::randn({1 << 16}).requires_grad_(); // 256 KiB
  const auto bytes_after_forward = [&] {
    const int64_t before = runtime::cpu_bytes_live();
    const auto loss = chain(x, 20);
    return runtime::cpu_bytes_live() - before;
  };
  const int64_t plain = bytes_after_forward();
  EXPECT_GE(plain, 20 << 18);
  const auto sink = make_sink(options(4 << 18, 4 << 18));
  const runtime::SavedTensorScope scope(sink);
  chain(x, 20); // the host's slab is there
  EXPECT_LE(bytes_after_forward(), (4 << 18) + 4096);

  // In backward: the budget, two gradients, and the leaf's own.
  auto loss = chain(x, 20);
  const int64_t before = runtime::cpu_bytes_live();
  runtime::reset_cpu_bytes_peak();
  loss.backward();
  EXPECT_LE(runtime::cpu_bytes_peak() - before, (4 << 18) + 4096);
}

TEST(HostActivationSink, ABudgetTooSmallForATensorStillWorks) {
  const auto sink = make_sink(options(1000, 1 << 20));
  const runtime::SavedTensorScope scope(sink);
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
  const runtime::SavedTensorScope scope(sink);
  auto loss = chain(chain_input(), 10);
  EXPECT_EQ(sink->statistics().live_device_bytes, 10 * 1024);
  EXPECT_EQ(sink->statistics().bytes_to_host, 0);
  loss.backward();
  expect_empty(*sink, "after backward");
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
  const runtime::SavedTensorScope scope(sink);
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
  const runtime::SavedTensorScope scope(sink);
  auto loss = chain(chain_input(), 8);
  EXPECT_EQ(sink->statistics().live_host_bytes, 8 * 1024);
  EXPECT_EQ(sink->statistics().live_device_bytes, 2048);
  loss.backward();
  expect_empty(*sink, "after backward");
}

TEST(HostActivationSink, WrongOptionsAreAnError) {
  expect_error([] { make_sink(options(-5)); }, {"device_bytes is -5"});
  expect_error([] { make_sink(options(5, -1)); }, {"prefetch_bytes -1"});
}

} // namespace tessera::offload::host_activation_sink_test
