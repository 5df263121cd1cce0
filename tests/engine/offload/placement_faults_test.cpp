// SPDX-License-Identifier: Apache-2.0
// Tiers that are missing, too small, or fail in mid-run: every rank gets an
// error that says what to do, and nothing goes on with half an update.
#include "engine/offload/placement.h"

#include "support/ranks.h"

#include <unistd.h>

#include <filesystem>

namespace tessera::engine::placement_faults_test {

namespace {

using namespace tests;

/// The descriptor of this process's file of the NVMe tier.
int nvme_file() {
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(entry.path(), ignored);
    if (target.filename().string().rfind("tessera-", 0) == 0 &&
        target.extension() != ".shm" &&
        target.string().find("tessera-test-") != std::string::npos) {
      return std::stoi(entry.path().filename().string());
    }
  }
  return -1;
}

std::string error_of_wrap(const EngineOptions& options) {
  RestingNet net = make_resting_net();
  return error_of([&] { wrap(net, options); });
}

/// What a read finds of a truncated file depends on what else was on its way:
/// the file is shorter than it was (a late write may have made it longer
/// again), the read alone comes short, or there are zeros in place of values.
void expect_lost_state(const std::string& message) {
  EXPECT_TRUE(
      message.find("has been truncated to") != std::string::npos ||
      message.find("was the file truncated?") != std::string::npos ||
      message.find("checksum differs") != std::string::npos)
      << message;
  EXPECT_NE(message.find("resume from the last checkpoint"), std::string::npos)
      << message;
}

void expect_parts(
    const std::string& message,
    std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected: " << part << "\nfound: " << message;
  }
}

} // namespace

TEST(PlacementFaults, OptionsThatDoNotGoTogether) {
  run_ranks(1, [](World&) {
    EngineOptions options = resting_options(std::nullopt);
    options.placement.optimizer = MemoryTier::kNvme;
    expect_parts(
        error_of_wrap(options),
        {"placement.optimizer is nvme", "memory.nvme_path"});
    options.memory.nvme_path = "/absent/folder";
    expect_parts(error_of_wrap(options), {"/absent/folder", "is not a folder"});
    for (auto tier :
         {&PlacementOptions::parameters, &PlacementOptions::gradients}) {
      options = resting_options(std::nullopt);
      options.placement.*tier = MemoryTier::kNvme;
      expect_parts(error_of_wrap(options), {"is nvme", "memory.nvme_path"});
    }
    options = resting_options(std::nullopt);
    options.memory.nvme_bytes = 1 << 20;
    expect_parts(
        error_of_wrap(options), {"memory.nvme_bytes", "memory.nvme_path"});
    options = resting_options(std::nullopt);
    options.memory.host_bytes = -1;
    expect_parts(error_of_wrap(options), {"memory.host_bytes is -1"});
  });
}

TEST(PlacementFaults, TiersThatAreTooSmall) {
  run_ranks(1, [](World&) {
    const TemporaryFolder folder;
    EngineOptions options = resting_options(std::nullopt);
    options.placement.optimizer = MemoryTier::kHost;
    options.memory.host_bytes = 8 << 10;
    expect_parts(
        error_of_wrap(options),
        {"host memory for 'exp_avg", "memory.host_bytes (8192)", "Raise"});
    options.placement.optimizer = MemoryTier::kNvme;
    options.memory.nvme_path = folder.path();
    expect_parts(
        error_of_wrap(options),
        {"staging buffers", "memory.host_bytes (8192)"});
    options.memory.host_bytes.reset();
    options.memory.nvme_bytes = 8 << 10;
    expect_parts(
        error_of_wrap(options),
        {"memory.nvme_bytes: 'exp_avg", "of the limit (8192)", "Raise"});
    options = resting_options(std::nullopt);
    options.memory.device_bytes = 80 << 10;
    expect_parts(
        error_of_wrap(options),
        {"memory.device_bytes is 80.00 KiB (81920 bytes)",
         "raise memory.device_bytes to at least",
         "set memory.host_bytes so that optimizer state (",
         "set memory.nvme_path",
         "use more ranks"});
  });
}

// Also where groups that are unsharded do not fit beside the state.
TEST(PlacementFaults, HostMemoryIsNamedWhateverDoesNotFit) {
  run_ranks(2, [](World&) {
    EngineOptions options = resting_options(std::nullopt);
    options.memory.host_bytes = 8 << 10;
    int refused = 0;
    for (int64_t kib = 4;; kib += 4) {
      options.memory.device_bytes = kib << 10;
      const std::string message = error_of_wrap(options);
      if (message.empty()) {
        break;
      }
      ++refused;
      expect_parts(
          message,
          {"memory.device_bytes is ",
           "raise memory.device_bytes to at least",
           "raise memory.host_bytes from 8.00 KiB (8192 bytes)",
           "(`group` in sharding.modules)"});
    }
    EXPECT_GT(refused, 1);
  });
}

TEST(PlacementFaults, ABudgetsRemediesAreThoseThatAreLeft) {
  run_ranks(1, [](World&) {
    const TemporaryFolder folder;
    const auto expect = [](const EngineOptions& options,
                           std::initializer_list<const char*> parts,
                           std::initializer_list<const char*> absent) {
      const std::string message = error_of_wrap(options);
      expect_parts(message, parts);
      for (const char* part : absent) {
        EXPECT_EQ(message.find(part), std::string::npos)
            << "not expected: " << part << "\nfound: " << message;
      }
    };
    EngineOptions options = resting_options(std::nullopt);
    options.memory.device_bytes = 4 << 10;
    options.memory.host_bytes = 8 << 10;
    expect(
        options,
        {"raise memory.host_bytes from 8.00 KiB (8192 bytes)",
         "set memory.nvme_path"},
        {"set memory.host_bytes", "activation_bytes", "stage_bytes"});
    options.memory.host_bytes.reset();
    options.memory.nvme_path = folder.path();
    options.memory.nvme_bytes = 4 << 10;
    options.memory.activation_bytes = 100;
    expect(
        options,
        {"set memory.host_bytes so that",
         "raise memory.nvme_bytes from 4.00 KiB (4096 bytes)",
         "lower memory.activation_bytes",
         "0.10 KiB (100 bytes) of it for activations"},
        {"set memory.nvme_path"});
    options = resting_options(std::nullopt);
    options.memory.device_bytes = 4 << 10;
    options.placement.optimizer = MemoryTier::kDevice;
    expect(
        options,
        {"set placement.optimizer to auto", "of optimizer state"},
        {"raise memory.host_bytes"});
    options.placement.optimizer = MemoryTier::kHost;
    options.placement.parameters = MemoryTier::kDevice;
    options.placement.gradients = MemoryTier::kDevice;
    options.offload.ratio = 0;
    expect(
        options,
        {"lower offload.stage_bytes from 96.00 MiB"},
        {"set memory.host_bytes", "set memory.nvme_path"});
  });
}

TEST(PlacementFaults, AFileThatIsTruncatedEndsTheRunOnEveryRank) {
  const auto results = run_ranks_expecting(2, [](World& world) {
    const TemporaryFolder folder;
    EngineOptions options = resting_options(at::kBFloat16);
    options.placement.optimizer = MemoryTier::kNvme;
    options.memory.nvme_path = folder.path();
    RestingNet net = make_resting_net();
    auto engine = wrap(net, options);
    train_resting(engine, net, 0, 2, world.rank());
    if (world.rank() == 1) {
      const int file = nvme_file();
      ASSERT_GE(file, 0);
      ASSERT_EQ(::ftruncate(file, 4096), 0);
    }
    const std::string message =
        error_of([&] { train_resting(engine, net, 2, 2, world.rank()); });
    expect_lost_state(message);
    if (world.rank() == 1) {
      // And nothing of it can be used by mistake.
      expect_throws(
          [&] { engine.step(); },
          {"optimizer state is incomplete", "load the last"});
      expect_throws(
          [&] { engine.save(folder / "c"); },
          {"optimizer state is incomplete"});
      expect_throws(
          [&] { parameters_of(engine); }, {"optimizer state is incomplete"});
    }
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(PlacementFaults, WeightsThatAreLostEndTheForwardOnEveryRank) {
  const auto results = run_ranks_expecting(2, [](World& world) {
    const TemporaryFolder folder;
    EngineOptions options = resting_options(std::nullopt);
    options.placement.parameters = MemoryTier::kNvme;
    options.memory.nvme_path = folder.path();
    RestingNet net = make_resting_net();
    auto engine = wrap(net, options);
    train_resting(engine, net, 0, 2, world.rank());
    if (world.rank() == 1) {
      ASSERT_EQ(::ftruncate(nvme_file(), 4096), 0);
    }
    const std::string message =
        error_of([&] { train_resting(engine, net, 2, 2, world.rank()); });
    expect_lost_state(message);
    if (world.rank() == 0) {
      expect_parts(message, {"rank 1"});
    }
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(PlacementFaults, ACheckpointOfDamagedStateIsNotWritten) {
  run_ranks(1, [](World&) {
    const TemporaryFolder folder;
    EngineOptions options = resting_options(at::kBFloat16);
    options.placement.optimizer = MemoryTier::kNvme;
    options.memory.nvme_path = folder.path();
    RestingNet net = make_resting_net();
    auto engine = wrap(net, options);
    train_resting(engine, net, 0, 2, 0);
    engine.save(folder / "checkpoints");
    const int file = nvme_file();
    // Zeros, as a file that was truncated and grown again has them.
    const auto size =
        std::filesystem::file_size("/proc/self/fd/" + std::to_string(file));
    ASSERT_EQ(::ftruncate(file, 0), 0);
    ASSERT_EQ(::ftruncate(file, static_cast<off_t>(size)), 0);
    expect_throws(
        [&] { engine.save(folder / "checkpoints"); }, {"checksum differs"});
    // The one from before is still there.
    RestingNet other = make_resting_net();
    auto resumed = wrap(other, options);
    EXPECT_EQ(resumed.load(folder / "checkpoints"), 2);
  });
}

} // namespace tessera::engine::placement_faults_test
