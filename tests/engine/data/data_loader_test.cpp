// SPDX-License-Identifier: Apache-2.0
// Batches that are made ahead: the same with any threads, in order, with the
// exceptions of their making, and from any position under any number of ranks.
#include "tessera/engine/data/data_loader.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::data_loader_test {

namespace {

using Numbers = std::vector<size_t>;
using std::chrono::milliseconds;

/// Samples that take unequal times.
Numbers made_slowly(const SampleBatch& batch) {
  std::this_thread::sleep_for(milliseconds(batch.number * 7 % 4));
  Numbers numbers = batch.samples;
  numbers.push_back(static_cast<size_t>(batch.epoch));
  return numbers;
}

/// The samples of all ranks from `begin` on, in batches.
Numbers stream_of(
    int ranks,
    int64_t batch_size,
    const SamplePosition& begin,
    size_t count,
    SamplePosition* end = nullptr) {
  Numbers stream;
  std::vector<std::unique_ptr<SampleOrder>> made;
  for (int rank = 0; rank < ranks; ++rank) {
    made.push_back(std::make_unique<SampleOrder>(
        48, batch_size, BatchShare{rank, ranks}, 5));
  }
  std::vector<std::unique_ptr<DataLoader<Numbers>>> loaders;
  for (const auto& order : made) {
    loaders.push_back(std::make_unique<DataLoader<Numbers>>(
        *order, [](const SampleBatch& batch) { return batch.samples; }));
    loaders.back()->seek(begin);
  }
  while (stream.size() < count) {
    for (const auto& loader : loaders) {
      const Numbers batch = loader->next();
      stream.insert(stream.end(), batch.begin(), batch.end());
    }
  }
  if (end != nullptr) {
    *end = loaders.front()->position();
  }
  return stream;
}

} // namespace

TEST(SampleOrder, HasEachSampleOnceInAnEpochOverAllRanks) {
  std::set<Numbers> epochs;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    Numbers all;
    for (int64_t index = 0; index < 3; ++index) {
      for (int rank = 0; rank < 4; ++rank) {
        const SampleOrder order(25, 2, {rank, 4}, 9);
        ASSERT_EQ(order.batches_per_epoch(), 3);
        const SampleBatch batch = order.batch(3 * epoch + index);
        EXPECT_EQ(batch.epoch, epoch);
        all.insert(all.end(), batch.samples.begin(), batch.samples.end());
      }
    }
    EXPECT_EQ(std::set<size_t>(all.begin(), all.end()).size(), 24);
    EXPECT_LT(*std::max_element(all.begin(), all.end()), 25);
    epochs.insert(all);
  }
  EXPECT_EQ(epochs.size(), 4);
  EXPECT_NE(
      SampleOrder(25, 2, {}, 9).batch(1).samples,
      SampleOrder(25, 2, {}, 10).batch(1).samples);
  expect_error(
      [] {
        SampleOrder(7, 2, {1, 4}, 0);
      },
      {"7 examples", "one batch of 2", "4 ranks"});
  expect_error([] { SampleOrder(7, 2, {4, 4}, 0); }, {"share 4 of 4"});
}

// 30 samples, 24 of which fill steps of 8.
TEST(SampleOrder, HasTheSameStepsForAnyLayoutOfThem) {
  const auto steps_of = [](int ranks, int64_t batch_size, int64_t micro) {
    Numbers all;
    for (int64_t number = 0; number < 7 * micro; ++number) {
      for (int rank = 0; rank < ranks; ++rank) {
        const SampleOrder order(30, batch_size, {rank, ranks}, 3, micro);
        EXPECT_EQ(order.batches_per_epoch(), 3 * micro);
        const Numbers samples = order.batch(number).samples;
        all.insert(all.end(), samples.begin(), samples.end());
      }
    }
    return all;
  };
  const Numbers expected = steps_of(1, 8, 1);
  EXPECT_EQ(steps_of(1, 1, 8), expected);
  EXPECT_EQ(steps_of(4, 2, 1), expected);
  EXPECT_EQ(steps_of(2, 1, 4), expected);
  // Less than a step: what batches there are.
  EXPECT_EQ(SampleOrder(30, 2, {}, 3, 20).batches_per_epoch(), 15);
}

TEST(DataLoader, HasTheSameBatchesWithAnyThreads) {
  const SampleOrder order(23, 2, {1, 3}, 4);
  std::vector<Numbers> expected;
  for (int64_t number = 0; number < 14; ++number) {
    expected.push_back(made_slowly(order.batch(number)));
  }
  for (const int threads : {0, 1, 2, 5}) {
    for (const int prefetch : {1, 3}) {
      DataLoader<Numbers> loader(order, made_slowly, {threads, prefetch});
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(loader.number(), static_cast<int64_t>(i));
        EXPECT_EQ(loader.next(), expected[i]) << threads << " " << i;
      }
      for (const size_t i : {3UL, 9UL, 9UL, 0UL}) {
        loader.seek(static_cast<int64_t>(i));
        EXPECT_EQ(loader.next(), expected[i]);
        EXPECT_EQ(loader.next(), expected[i + 1]);
      }
    }
  }
}

TEST(DataLoader, MakesBatchesAheadButNotMoreThanItMay) {
  const SampleOrder order(100, 1, {}, 0);
  std::atomic<int64_t> last = -1;
  const auto make = [&](const SampleBatch& batch) {
    last = batch.number;
    return batch.number;
  };
  DataLoader<int64_t> loader(order, make, {1, 3});
  const auto wait_for = [&](int64_t number) {
    for (int i = 0; i < 2000 && last != number; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(last, number);
  };
  wait_for(2); // 0, 1 and 2 before any is asked for
  loader.next();
  wait_for(3);
  const SampleOrder local(100, 1, {}, 0);
  std::thread::id maker;
  DataLoader<int> here(
      local,
      [&](const SampleBatch&) {
        maker = std::this_thread::get_id();
        return 1;
      },
      {0, 3});
  here.next();
  EXPECT_EQ(maker, std::this_thread::get_id());
  expect_error(
      [&] {
        DataLoader<int64_t>(order, make, {-1, 3});
      },
      {"data.loader.threads", "-1"});
  expect_error(
      [&] {
        DataLoader<int64_t>(order, make, {1, 0});
      },
      {"data.loader.prefetch", "0"});
}

TEST(DataLoader, DeliversExceptionsWithTheBatchTheyBelongTo) {
  const SampleOrder order(100, 1, {}, 0);
  for (const int threads : {0, 1, 4}) {
    std::atomic<bool> is_broken = true;
    DataLoader<int64_t> loader(
        order,
        [&](const SampleBatch& batch) {
          if (is_broken && batch.number == 3) {
            throw std::runtime_error("sample 17 is damaged");
          }
          return batch.number;
        },
        {threads, 6});
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(loader.next(), i);
    }
    for (int i = 0; i < 2; ++i) { // until it can be made
      EXPECT_THROW(loader.next(), std::runtime_error);
      EXPECT_EQ(loader.number(), 3);
    }
    is_broken = false;
    for (int64_t i = 3; i < 12; ++i) {
      EXPECT_EQ(loader.next(), i) << threads;
    }
  }
}

TEST(DataLoader, EndsWhileBatchesAreMade) {
  const SampleOrder order(100, 1, {}, 0);
  for (int i = 0; i < 20; ++i) {
    DataLoader<Numbers> loader(order, made_slowly, {3, 2});
    if (i % 2 == 1) {
      loader.next();
    }
  }
}

TEST(DataLoader, ContinuesAtTheSameSampleUnderAnyNumberOfRanks) {
  const Numbers full = stream_of(4, 2, {}, 120);
  ASSERT_EQ(full.size(), 120); // two epochs and a half
  EXPECT_EQ(stream_of(1, 4, {}, 120), full);
  for (const size_t first : {8UL, 16UL, 40UL, 48UL, 64UL, 96UL}) {
    SamplePosition saved;
    const Numbers before = stream_of(4, 2, {}, first, &saved);
    for (const auto& [ranks, batch_size] :
         {std::pair{2, 2}, {1, 8}, {8, 1}, {2, 4}}) {
      Numbers all = before;
      const Numbers rest =
          stream_of(ranks, batch_size, saved, full.size() - first);
      all.insert(all.end(), rest.begin(), rest.end());
      EXPECT_EQ(all, full) << first << " samples, then " << ranks;
    }
  }
}

// From 4 ranks to 3 to 2, at samples where no batch would begin otherwise: the
// stream goes on with the next sample, and an epoch leaves out what fills no
// batch.
TEST(DataLoader, ContinuesAtAnySampleUnderAnyNumberOfRanks) {
  const auto order_of = [](int64_t epoch) {
    return SampleOrder(48, 48, {}, 5).batch(epoch).samples;
  };
  for (const size_t first : {8UL, 16UL, 24UL, 40UL}) {
    for (const size_t second : {9UL, 18UL, 27UL}) {
      SamplePosition saved;
      Numbers found = stream_of(4, 2, {}, first, &saved); // batches of 8
      const Numbers middle = stream_of(3, 3, saved, second, &saved); // of 9
      const Numbers last = stream_of(2, 5, saved, 40); // of 10
      found.insert(found.end(), middle.begin(), middle.end());
      found.insert(found.end(), last.begin(), last.end());
      Numbers expected;
      size_t at = 0;
      int64_t epoch = 0;
      for (const auto& [batch, count] :
           {std::pair{8UL, first}, {9UL, second}, {10UL, 40UL}}) {
        for (size_t read = 0; read < count; read += batch) {
          if (at + batch > 48) {
            at = 0;
            ++epoch;
          }
          const Numbers order = order_of(epoch);
          for (size_t i = 0; i < batch; ++i) {
            expected.push_back(order[at++]);
          }
        }
      }
      EXPECT_EQ(found, expected) << first << " and " << second << " samples";
    }
  }
}

// From any step of a run to steps of other ranks, batches and micro-batches.
TEST(DataLoader, LeavesTheRestOfAnEpochInWholeSteps) {
  for (int64_t begin = 0; begin < 40; begin += 4) {
    for (const auto [ranks, batch_size, micro] :
         {std::array{1, 4, 2}, {2, 4, 2}, {1, 4, 3}, {2, 2, 5}, {4, 1, 7}}) {
      const SampleOrder order(40, batch_size, {0, ranks}, 5, micro);
      DataLoader<Numbers> loader(
          order, [](const SampleBatch& batch) { return batch.samples; });
      loader.seek(SamplePosition{0, begin});
      const int64_t per_epoch = order.batches_per_epoch();
      const int64_t batch_samples = int64_t{batch_size} * ranks;
      const int64_t left = per_epoch - loader.number();
      const int64_t steps = (40 - begin) / (batch_samples * micro);
      EXPECT_EQ(left, steps * micro)
          << begin << ": " << ranks << " " << batch_size << " " << micro;
      if (left > 0) {
        EXPECT_EQ(loader.position().samples, begin);
      }
      for (int64_t i = 0; i < left; ++i) {
        loader.next();
      }
      EXPECT_EQ(loader.position().epoch, 1);
      EXPECT_EQ(loader.position().samples, 0);
    }
  }
}

TEST(DataLoader, IsPartOfCheckpoints) {
  const SampleOrder order(48, 2, {1, 4}, 5);
  DataLoader<Numbers> loader(order, made_slowly);
  for (int i = 0; i < 8; ++i) {
    loader.next();
  }
  const CheckpointState state = loader.save_state();
  EXPECT_EQ(state.values.at("epoch"), 1);
  EXPECT_EQ(state.values.at("samples"), 16);
  const Numbers expected = loader.next();
  DataLoader<Numbers> other(order, made_slowly);
  other.next();
  other.load_state(state);
  EXPECT_EQ(other.next(), expected);

  const SampleOrder more(49, 2, {1, 4}, 5);
  DataLoader<Numbers> of_more(more, made_slowly);
  expect_error(
      [&] { of_more.load_state(state); },
      {"epochs of so many samples: 48", "has 49"});
  const SampleOrder reseeded(48, 2, {1, 4}, 6);
  DataLoader<Numbers> of_reseeded(reseeded, made_slowly);
  expect_error([&] { of_reseeded.load_state(state); }, {"the seed 5", "has 6"});
}

TEST(SampleOrder, NamesItsOwnArguments) {
  expect_error(
      [] {
        SampleOrder(3, 2, {0, 2}, 1);
      },
      {"SampleOrder: 3 examples", "batch_size"});
}

} // namespace tessera::data_loader_test
