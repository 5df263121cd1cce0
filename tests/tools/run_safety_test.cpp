// SPDX-License-Identifier: Apache-2.0
// What a run has trained is not lost, whatever ends it.
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tools/run_program.h"

#include <sys/mount.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace tessera::run_safety_test {

namespace {

namespace fs = std::filesystem;

using tests::LaunchedJob;
using tests::losses_of;
using tests::read_json;
using tests::run_tessera;

bool has(const LaunchedJob::Result& result, const std::string& text) {
  return result.output.find(text) != std::string::npos;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_tokens(const fs::path& path, int count, int odd_one = -1) {
  std::ofstream tokens(path, std::ios::binary);
  for (int i = 0; i < count; ++i) {
    const auto token =
        static_cast<uint16_t>(i == odd_one ? 500 : (i + i / 37) % 23);
    const char bytes[] = {
        static_cast<char>(token & 0xff), static_cast<char>(token >> 8)};
    tokens.write(bytes, 2);
  }
}

class RunSafety : public ::testing::Test {
 protected:
  RunSafety() {
    write_tokens(folder_ / "tokens.bin", 16 * 64);
    std::ofstream(folder_ / "gpt.json") << gpt(16);
    std::ofstream(folder_ / "train.json") << R"({"task": "language_model",
        "model": {"max_length": 16}, "optimizer": {"lr": 1e-2},
        "training": {"batch_size": 4, "seed": 3, "max_steps": 4},
        "data": {}, "output": {}})";
  }

  static std::string gpt(int width) {
    return R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 23, "n_embd": )" +
           std::to_string(width) + R"(, "n_layer": 2, "n_head": 4,
        "n_positions": 16, "resid_pdrop": 0, "embd_pdrop": 0,
        "attn_pdrop": 0})";
  }

  std::vector<std::string> words(
      const fs::path& run,
      const std::vector<std::string>& overrides) const {
    std::vector<std::string> all{
        "train",
        (folder_ / "train.json").string(),
        "model.config=" + (folder_ / "gpt.json").string(),
        "data.train=" + (folder_ / "tokens.bin").string(),
        "output.folder=" + run.string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return all;
  }

  LaunchedJob::Result train(
      const std::string& name,
      const std::vector<std::string>& overrides = {},
      int ranks = 1) const {
    return run_tessera(ranks, words(folder_ / name, overrides));
  }

  /// A run without end, under the launcher.
  LaunchedJob start(
      const std::string& name,
      int ranks,
      const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all{
        tests::program("tessera"),
        "launch",
        "--nproc",
        std::to_string(ranks),
        "--",
        tests::program("tessera")};
    for (const std::string& word : words(
             folder_ / name,
             {"training.max_steps=100000000", "training.epochs=100000000"})) {
      all.push_back(word);
    }
    all.insert(all.end(), overrides.begin(), overrides.end());
    return LaunchedJob([all] {
      std::vector<char*> argv;
      for (const std::string& argument : all) {
        argv.push_back(const_cast<char*>(argument.c_str()));
      }
      argv.push_back(nullptr);
      ::execv(argv.front(), argv.data());
      return 127;
    });
  }

  /// The newest step with a checkpoint; 0 if there is none.
  int64_t saved_step(const std::string& name) const {
    int64_t step = 0;
    std::error_code code;
    for (const auto& entry :
         fs::directory_iterator(folder_ / name / "checkpoints", code)) {
      const std::string file = entry.path().filename().string();
      if (file.starts_with("step-") &&
          fs::exists(entry.path() / "manifest.json")) {
        step = std::max<int64_t>(step, std::stoll(file.substr(5)));
      }
    }
    return step;
  }

  const TemporaryFolder folder_;
};

/// A disk of so many bytes at a folder, if this process may mount one.
class SmallDisk {
 public:
  SmallDisk(const fs::path& folder, int kibibytes) : folder_(folder) {
    fs::create_directories(folder);
    const std::string options = "size=" + std::to_string(kibibytes) + "k";
    is_mounted_ =
        ::mount("tessera-test", folder.c_str(), "tmpfs", 0, options.c_str()) ==
        0;
  }
  ~SmallDisk() {
    if (is_mounted_) {
      ::umount2(folder_.c_str(), MNT_DETACH);
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool is_mounted() const {
    return is_mounted_;
  }
  /// Writes until nothing more fits.
  void fill() const {
    std::ofstream file(folder_ / "filler", std::ios::binary);
    const std::string block(4096, 'x');
    while (file.write(block.data(), 4096) && file.flush()) {
    }
  }
  void free() const {
    fs::remove(folder_ / "filler");
  }

 private:
  fs::path folder_;
  bool is_mounted_ = false;
};

} // namespace

TEST_F(RunSafety, SavesTheLastStepAndSaysSo) {
  const auto result = train("run");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(saved_step("run"), 4);
  EXPECT_TRUE(has(result, "saved step 4 in ")) << result.output;
  EXPECT_TRUE(has(result, "4 steps (1 to 4 of 4)")) << result.output;

  const auto longer =
      train("run", {"training.resume=true", "training.max_steps=6"});
  ASSERT_EQ(longer.exit_code, 0) << longer.output;
  EXPECT_TRUE(has(longer, "resuming from step 4 of 6")) << longer.output;
  EXPECT_TRUE(has(longer, "2 steps (5 to 6 of 6)")) << longer.output;
  EXPECT_EQ(saved_step("run"), 6);
  EXPECT_EQ(losses_of(folder_ / "run").size(), 6U);

  const auto none = train("none", {"training.save_last=false"});
  ASSERT_EQ(none.exit_code, 0) << none.output;
  EXPECT_EQ(saved_step("none"), 0);
}

TEST_F(RunSafety, SavesByTime) {
  const auto result =
      train("run", {"training.save_minutes=1e-9", "training.keep_last=0"}, 2);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (int step = 1; step <= 4; ++step) {
    EXPECT_TRUE(has(result, "saved step " + std::to_string(step) + " in"))
        << result.output;
  }
}

// A bad token in the held-out data is found when they are scored.
// The held-out file is damaged after it was checked, in the run's first steps.
TEST_F(RunSafety, ExportsBeforeItScores) {
  const fs::path heldout = folder_ / "heldout.bin";
  write_tokens(heldout, 16 * 8);
  std::atomic<bool> is_over = false;
  std::thread vandal([&] {
    while (!is_over && !fs::exists(folder_ / "run/metrics.jsonl")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::fstream file(heldout, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(2 * 100);
    file.write("\xf4\x01", 2);
  });
  const auto result = train(
      "run",
      {"data.heldout=" + heldout.string(),
       "training.epochs=20",
       "training.max_steps=300"});
  is_over = true;
  vandal.join();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(has(result, "scoring the held-out data failed")) << result.output;
  EXPECT_TRUE(has(result, "score it with `tessera eval")) << result.output;
  EXPECT_EQ(saved_step("run"), 300);
  ASSERT_TRUE(fs::exists(folder_ / "run/model/model.safetensors"));
  const auto score = run_tessera(
      1,
      {"eval",
       (folder_ / "run").string(),
       "data.heldout=" + (folder_ / "tokens.bin").string()});
  EXPECT_EQ(score.exit_code, 0) << score.output;
}

TEST_F(RunSafety, AFailedExportCanBeRepeated) {
  // A link to nowhere looks like nothing, and cannot be written to.
  fs::create_directories(folder_ / "run");
  fs::create_symlink("/proc/none/model", folder_ / "run/model");
  const auto result = train("run");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  ASSERT_EQ(saved_step("run"), 4) << result.output;
  EXPECT_TRUE(has(result, "exporting the model failed")) << result.output;
  EXPECT_TRUE(has(result, "`tessera export ")) << result.output;

  fs::remove(folder_ / "run/model");
  ASSERT_EQ(train("whole").exit_code, 0);
  const std::string expected =
      content_of(folder_ / "whole/model/model.safetensors");
  const auto exported = run_tessera(1, {"export", (folder_ / "run").string()});
  ASSERT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_TRUE(has(exported, "exported step 4")) << exported.output;
  EXPECT_EQ(content_of(folder_ / "run/model/model.safetensors"), expected);
  EXPECT_TRUE(fs::exists(folder_ / "run/result.json"));
  const auto elsewhere = run_tessera(
      2,
      {"export",
       (folder_ / "run").string(),
       "--to",
       (folder_ / "there").string()});
  ASSERT_EQ(elsewhere.exit_code, 0) << elsewhere.output;
  EXPECT_EQ(content_of(folder_ / "there/model.safetensors"), expected);
  const auto over_a_model = run_tessera(
      1,
      {"export",
       (folder_ / "run").string(),
       "--to",
       (folder_ / "whole/model").string()});
  EXPECT_EQ(over_a_model.exit_code, 1);
  EXPECT_TRUE(has(over_a_model, "which contains a model"))
      << over_a_model.output;
  const auto nothing =
      run_tessera(1, {"export", (folder_ / "absent").string()});
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_TRUE(has(nothing, "has no config.json")) << nothing.output;
}

class StopSignal : public RunSafety,
                   public ::testing::WithParamInterface<std::pair<int, int>> {};

TEST_P(StopSignal, SavesTheStepAtWhichAllRanksEnd) {
  const auto [ranks, signal] = GetParam();
  LaunchedJob job = start("run", ranks);
  ASSERT_TRUE(job.wait_for("/100000000")) << job.output();
  job.signal(signal);
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 128 + signal) << result.output;
  const int64_t step = saved_step("run");
  ASSERT_GT(step, 0) << result.output;
  EXPECT_TRUE(has(result, "after step " + std::to_string(step) + " of"))
      << result.output;
  EXPECT_TRUE(has(result, "resume with training.resume=true")) << result.output;
  EXPECT_FALSE(has(result, "error")) << result.output;
  EXPECT_EQ(losses_of(folder_ / "run").size(), static_cast<size_t>(step));
  // It continues there, also on other ranks, and can be exported.
  const std::string one_more = "training.max_steps=" + std::to_string(step + 1);
  const auto exported = run_tessera(1, {"export", (folder_ / "run").string()});
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  const auto resumed = train(
      "run", {"training.resume=true", "training.epochs=100000000", one_more});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_TRUE(has(resumed, "resuming from step " + std::to_string(step)))
      << resumed.output;
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    StopSignal,
    ::testing::Values(
        std::pair(1, SIGINT),
        std::pair(2, SIGINT),
        std::pair(2, SIGTERM)));

TEST_F(RunSafety, OneRunAtATimeWritesToAFolder) {
  LaunchedJob first = start("run", 1);
  ASSERT_TRUE(first.wait_for("/100000000")) << first.output();
  const auto second = train("run");
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_TRUE(has(second, "is in use: pid ")) << second.output;
  EXPECT_TRUE(has(second, " on host ")) << second.output;
  first.signal(SIGKILL);
  first.wait();
  // Nothing remains of the lock.
  const auto third = train("run");
  EXPECT_EQ(third.exit_code, 0) << third.output;
}

TEST_F(RunSafety, AFinishedRunIsOverwrittenOnRequestOnly) {
  ASSERT_EQ(train("run", {"training.save_last=false"}).exit_code, 0);
  const auto model = folder_ / "run/model/model.safetensors";
  const std::string trained = content_of(model);
  const auto again = train("run", {"training.seed=5"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_TRUE(has(again, "contains a finished run")) << again.output;
  EXPECT_TRUE(has(again, "output.overwrite=true")) << again.output;
  const auto resumed = train("run", {"training.resume=true"});
  EXPECT_EQ(resumed.exit_code, 1);
  EXPECT_TRUE(has(resumed, "a finished run without checkpoints"))
      << resumed.output;
  for (const char* resume :
       {"training.resume=true", "training.resume_from=step-4"}) {
    const auto both = train("run", {resume, "output.overwrite=true"});
    EXPECT_EQ(both.exit_code, 1);
    EXPECT_TRUE(has(both, "output.overwrite is true; it begins a new run"))
        << both.output;
  }
  EXPECT_EQ(content_of(model), trained);
  ASSERT_EQ(
      train("run", {"training.seed=5", "output.overwrite=true"}).exit_code, 0);
  EXPECT_NE(content_of(model), trained);
  // Its configuration can be used again, but loses nothing by itself.
  EXPECT_EQ(
      content_of(folder_ / "run/config.json").find("overwrite"),
      std::string::npos);
  // That one has a checkpoint.
  const auto lost = train("run");
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_TRUE(has(lost, "contains checkpoints of an earlier run"))
      << lost.output;
  const auto over =
      train("run", {"output.overwrite=true", "training.max_steps=3"});
  EXPECT_EQ(over.exit_code, 0) << over.output;
  EXPECT_EQ(saved_step("run"), 3);
}

TEST_F(RunSafety, ADamagedCheckpointNamesTheOneBefore) {
  ASSERT_EQ(train("run", {"training.save_every=2"}).exit_code, 0);
  const auto file = folder_ / "run/checkpoints/step-000004/rank-0.safetensors";
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-40, std::ios::end);
    bytes << "damage";
  }
  const std::vector<std::string> longer{
      "training.resume=true", "training.max_steps=6"};
  const auto refused = train("run", longer);
  EXPECT_EQ(refused.exit_code, 1);
  const std::string before = (folder_ / "run/checkpoints/step-000002").string();
  EXPECT_TRUE(has(refused, "training.resume_from=" + before)) << refused.output;
  // Each command by its own option.
  const std::string run = (folder_ / "run").string();
  for (const char* command : {"eval", "export"}) {
    const auto unread = run_tessera(
        1,
        {command,
         run,
         "--from",
         "step-4",
         "data.heldout=" + (folder_ / "tokens.bin").string()});
    EXPECT_EQ(unread.exit_code, 1);
    EXPECT_TRUE(has(unread, "older checkpoint: --from " + before))
        << unread.output;
    EXPECT_FALSE(has(unread, "training.resume")) << unread.output;
    EXPECT_FALSE(has(unread, "resuming")) << unread.output;
  }
  // Of the oldest there is none before.
  fs::rename(folder_ / "run/checkpoints/step-000002", folder_ / "step-000002");
  fs::copy(
      folder_ / "run/checkpoints/step-000004",
      folder_ / "step-000004",
      fs::copy_options::recursive);
  fs::rename(folder_ / "step-000004", folder_ / "step-000001");
  const auto oldest = run_tessera(
      1, {"export", run, "--from", (folder_ / "step-000001").string()});
  EXPECT_TRUE(has(
      oldest, "newer checkpoint: --from " + (folder_ / "step-000002").string()))
      << oldest.output;
  fs::rename(folder_ / "step-000002", folder_ / "run/checkpoints/step-000002");
  const auto older =
      train("run", {"training.resume_from=step-2", "training.max_steps=3"});
  ASSERT_EQ(older.exit_code, 0) << older.output;
  EXPECT_TRUE(has(older, "resuming from step 2 of 3")) << older.output;
  // The damaged one is later, and must not be resumed from again.
  EXPECT_EQ(saved_step("run"), 3);
  EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/replaced-step-000004"));
  const auto resumed = train("run", longer);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_TRUE(has(resumed, "resuming from step 3 of 6")) << resumed.output;
}

// Of commands that read a run, `--from` chooses a checkpoint; the keys that
// `tessera train` resumes by choose nothing there.
TEST_F(RunSafety, ACheckpointIsScored) {
  const std::string tokens =
      "data.heldout=" + (folder_ / "tokens.bin").string();
  const auto trained = train(
      "run",
      {tokens,
       "optimizer.lr=3e-2",
       "training.evaluate_every=2",
       "training.save_every=2",
       "training.keep_best=true"});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const std::string run = (folder_ / "run").string();
  const auto score_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"eval", run};
    words.insert(words.end(), more.begin(), more.end());
    return run_tessera(1, words);
  };
  const auto last = score_of({});
  ASSERT_EQ(last.exit_code, 0) << last.output;
  const auto same = score_of({"--from", "step-4"});
  EXPECT_EQ(same.exit_code, 0) << same.output;
  EXPECT_TRUE(has(same, last.output)) << same.output << last.output;
  // The last one is the best; make it the earlier.
  const fs::path checkpoints = folder_ / "run/checkpoints";
  ASSERT_TRUE(fs::remove(checkpoints / "best"));
  fs::create_symlink("step-000002", checkpoints / "best");
  const auto earlier = score_of({"--from", "best"});
  EXPECT_EQ(earlier.exit_code, 0) << earlier.output;
  EXPECT_FALSE(has(earlier, last.output)) << earlier.output << last.output;

  for (const auto& [command, given] :
       {std::pair("eval", "training.resume_from=best"),
        std::pair("export", R"(training={"resume": true})")}) {
    const auto refused = run_tessera(1, {command, run, given});
    EXPECT_EQ(refused.exit_code, 1) << refused.output;
    EXPECT_TRUE(has(
        refused, std::string(given) + " is for `tessera train`, which resumes"))
        << refused.output;
    EXPECT_TRUE(has(refused, "--from best")) << refused.output;
  }
  const auto checked = score_of({"training.resume_from=best", "--check"});
  EXPECT_EQ(checked.exit_code, 1) << checked.output;
}

// `--from best` says what it is, and what a run has done since.
TEST_F(RunSafety, TheBestCheckpointSaysOfWhat) {
  const std::string run = (folder_ / "run").string();
  const std::string tokens = (folder_ / "tokens.bin").string();
  const std::string other = (folder_ / "other.bin").string();
  write_tokens(other, 16 * 65);
  const auto first = train(
      "run",
      {"data.heldout=" + tokens,
       "training.evaluate_every=2",
       "training.save_every=2",
       "training.keep_last=0",
       "training.keep_best=true"});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const auto best_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"eval", run, "--from", "best"};
    all.insert(all.end(), more.begin(), more.end());
    return run_tessera(1, all);
  };
  const auto same = best_of({});
  ASSERT_EQ(same.exit_code, 0) << same.output;
  EXPECT_TRUE(has(same, "--from best: '" + run + "/checkpoints/step-000004'"))
      << same.output;
  EXPECT_TRUE(has(same, " of step 4 on '" + tokens + "'")) << same.output;
  EXPECT_FALSE(has(same, "warning")) << same.output;
  // A copy is the same data.
  fs::copy_file(tokens, folder_ / "copy.bin");
  const auto copied =
      best_of({"data.heldout=" + (folder_ / "copy.bin").string()});
  EXPECT_FALSE(has(copied, "warning")) << copied.output;
  const auto others = best_of({"data.heldout=" + other});
  EXPECT_EQ(others.exit_code, 0) << others.output;
  EXPECT_TRUE(has(
      others, "it was the best on '" + tokens + "', not on '" + other + "'"))
      << others.output;

  // On without scoring.
  const auto longer = train(
      "run",
      {"data.heldout=" + tokens,
       "training.resume=true",
       "training.max_steps=8",
       "training.save_every=2",
       "training.keep_last=0"});
  ASSERT_EQ(longer.exit_code, 0) << longer.output;
  const std::string unscored =
      "nothing has been scored since step 4; step-000006, step-000008 are newer and may be better: score the newest with --from step-000008";
  const auto stale = best_of({});
  EXPECT_EQ(stale.exit_code, 0) << stale.output;
  EXPECT_TRUE(has(stale, unscored)) << stale.output;
  const auto exported = run_tessera(
      1,
      {"export", run, "--from", "best", "--to", (folder_ / "best").string()});
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_TRUE(has(exported, " of step 4 on '" + tokens + "'"))
      << exported.output;
  EXPECT_TRUE(has(exported, unscored)) << exported.output;
  EXPECT_FALSE(
      has(run_tessera(1, {"eval", run, "--from", "step-4"}), "--from best"));

  // On with a better score that is not the best checkpoint.
  const auto scored = train(
      "run",
      {"data.heldout=" + tokens,
       "training.resume=true",
       "training.evaluate_every=2",
       "training.max_steps=10"});
  ASSERT_EQ(scored.exit_code, 0) << scored.output;
  const auto better = best_of({});
  EXPECT_TRUE(has(better, "the run has had a better score, heldout_loss"))
      << better.output;
  EXPECT_TRUE(has(better, " of step 10, --from step-000010")) << better.output;
  EXPECT_FALSE(has(better, "nothing has been scored")) << better.output;
  const auto refused = best_of({"training.best_metric=accuracy"});
  EXPECT_EQ(refused.exit_code, 1) << refused.output;
  EXPECT_TRUE(
      has(refused, "'step-000004' is the best one by loss, heldout_loss"))
      << refused.output;
  EXPECT_TRUE(has(refused, "training.best_metric is 'accuracy'"))
      << refused.output;
  // A link to what was not the best.
  fs::remove(folder_ / "run/checkpoints/best");
  fs::create_symlink("step-000008", folder_ / "run/checkpoints/best");
  const auto wrong = best_of({});
  EXPECT_EQ(wrong.exit_code, 1) << wrong.output;
  EXPECT_TRUE(has(wrong, "'best' is a link to 'step-000008', but"))
      << wrong.output;
  fs::remove(folder_ / "run/checkpoints/best");
  const auto none = best_of({});
  EXPECT_EQ(none.exit_code, 1) << none.output;
  EXPECT_TRUE(has(none, "training.keep_best")) << none.output;
}

TEST_F(RunSafety, ResumingRefusesWhatCannotBeMeant) {
  ASSERT_EQ(train("run").exit_code, 0);
  std::ofstream(folder_ / "wide.json") << gpt(32);
  write_tokens(folder_ / "other.bin", 16 * 65);
  const std::string other = "data.train=" + (folder_ / "other.bin").string();
  const std::vector<std::pair<std::string, std::string>> refused{
      {"optimizer.type=lion", R"(optimizer.type "adamw" -> "lion")"},
      {"model.config=" + (folder_ / "wide.json").string(),
       "the model's n_embd 16 -> 32"},
      {other, "training.new_data=true"},
      {"data.token_type=int32", R"(data.token_type "uint16" -> "int32")"}};
  for (const auto& [change, message] : refused) {
    const auto result =
        train("run", {"training.resume=true", "training.max_steps=6", change});
    EXPECT_EQ(result.exit_code, 1) << change;
    EXPECT_TRUE(has(result, message)) << change << ":\n" << result.output;
  }
  const auto accepted = train(
      "run",
      {"training.resume=true",
       "training.max_steps=6",
       "training.log_every=2",
       "optimizer.lr=1e-3"},
      2);
  ASSERT_EQ(accepted.exit_code, 0) << accepted.output;
  for (const char* line :
       {"optimizer.lr 0.01 -> 0.001",
        "training.max_steps 4 -> 6",
        "training.log_every 1 -> 2"}) {
    EXPECT_TRUE(has(accepted, line)) << accepted.output;
  }
  EXPECT_EQ(saved_step("run"), 6);
  // The same data under another name are the same data.
  fs::copy_file(folder_ / "tokens.bin", folder_ / "moved.bin");
  const auto moved = train(
      "run",
      {"training.resume=true",
       "training.max_steps=7",
       "data.train=" + (folder_ / "moved.bin").string()});
  EXPECT_EQ(moved.exit_code, 0) << moved.output;
  EXPECT_TRUE(has(moved, "with the same content")) << moved.output;
  // Other data are trained on from their first sample.
  const auto renewed = train(
      "run",
      {"training.resume=true",
       "training.new_data=true",
       "training.max_steps=0",
       other});
  ASSERT_EQ(renewed.exit_code, 0) << renewed.output;
  EXPECT_TRUE(has(renewed, "resuming from step 7 of 23")) << renewed.output;
  EXPECT_EQ(saved_step("run"), 23);
}

TEST_F(RunSafety, AFullDiskDoesNotEndTraining) {
  const SmallDisk disk(folder_ / "disk", 4096);
  if (!disk.is_mounted()) {
    GTEST_SKIP() << "mounting a tmpfs: " << std::strerror(errno);
  }
  LaunchedJob job = start("disk/run", 2, {"training.log_every=1"});
  ASSERT_TRUE(job.wait_for("/100000000")) << job.output();
  disk.fill();
  ASSERT_TRUE(job.wait_for("Training continues")) << job.output();
  // It is told once.
  EXPECT_FALSE([&] {
    for (int i = 0; i < 20; ++i) {
      ::usleep(50000);
    }
    return job.count("Training continues") > 1;
  }());
  disk.free();
  job.signal(SIGTERM);
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.output;
  EXPECT_EQ(job.count("Training continues"), 1) << result.output;
  EXPECT_GT(saved_step("disk/run"), 0) << result.output;
  losses_of(folder_ / "disk/run"); // throws at a torn line
}

TEST_F(RunSafety, ACheckpointThatDoesNotFitDoesNotEndTraining) {
  const SmallDisk disk(folder_ / "disk", 4096);
  if (!disk.is_mounted()) {
    GTEST_SKIP() << "mounting a tmpfs: " << std::strerror(errno);
  }
  fs::create_directories(folder_ / "disk/run/checkpoints");
  LaunchedJob job = start("disk/run", 2, {"training.save_every=50"});
  ASSERT_TRUE(job.wait_for("saved step 50 in")) << job.output();
  disk.fill();
  ASSERT_TRUE(job.wait_for("was not saved: ")) << job.output();
  disk.free();
  const int saved = job.count("saved step ");
  ASSERT_TRUE(job.wait_for("saved step ", saved + 1)) << job.output();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait().exit_code, 128 + SIGINT) << job.output();
}

} // namespace tessera::run_safety_test
