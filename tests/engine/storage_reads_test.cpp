// SPDX-License-Identifier: Apache-2.0
// Reads that pass the dispatcher, and pages that stay.
#include "engine/twin.h"
#include "support/ranks.h"

#include <sstream>

namespace tessera::tests::storage_reads_test {

class StorageReads : public ::testing::TestWithParam<int> {};

TEST_P(StorageReads, RawPointersOfShardedParametersAreRefused) {
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

TEST_P(StorageReads, ViewsMadeBeforeWrapAreRefusedWhileSharded) {
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

TEST_P(StorageReads, SaveThrowsOrIsRight) {
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
      std::stringstream full;
      {
        const auto scope = twin.engine.gather();
        torch::save(twin.wrapped, full);
      }
      check_saved(full);
    }
  });
}

TEST_P(StorageReads, ReadingInAScopeIsNotCollective) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 8; ++step) {
      const auto before = twin.engine.stats().paging.on_demand_unshards;
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
        EXPECT_EQ(twin.engine.stats().paging.on_demand_unshards, before)
            << "step " << step;
      }
      twin.expect_same_parameters("after step " + std::to_string(step));
    }
  });
}

TEST_P(StorageReads, PagesThatStayedOverAStepAreNotUsedAgain) {
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

TEST_P(StorageReads, EvaluationBetweenSteps) {
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

INSTANTIATE_TEST_SUITE_P(Worlds, StorageReads, ::testing::Range(1, 4));

} // namespace tessera::tests::storage_reads_test
