// SPDX-License-Identifier: Apache-2.0
// Wherever a checkpoint is damaged, and wherever writing one fails, the error
// names the file, nothing in the engine has changed, and the checkpoint before
// loads.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/runtime/io/atomic_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>

namespace tessera::engine::every_byte_test {

namespace {

namespace fs = std::filesystem;
using namespace tests;

constexpr uid_t kNobody = 65534;

EngineOptions options_of(bool in_background) {
  EngineOptions options = group_per_layer();
  options.log_memory = false;
  options.save_in_background = in_background;
  return options;
}

void save(Engine& engine, const fs::path& folder, bool in_background) {
  if (in_background) {
    engine.save_in_background(folder).wait();
  } else {
    engine.save(folder);
  }
}

/// An engine in a folder with the checkpoints of its steps 1 and 2, at step 3.
/// Calls `use` with what it has before and after each attempt to load.
class Fixture {
 public:
  explicit Fixture(bool in_background = false)
      : net_(make_restless(1, torch::kFloat)),
        engine_(wrap(net_, options_of(in_background))) {
    for (int i = 0; i < 2; ++i) {
      train_steps(engine_, net_, 1);
      engine_.save(folder_.path());
    }
    train_steps(engine_, net_, 1);
    now_ = values_of(engine_, *net_);
  }

  Engine& engine() {
    return engine_;
  }
  const fs::path& folder() const {
    return folder_.path();
  }
  fs::path newest() const {
    return checkpoint_path(folder(), 2);
  }

  /// Loading the newest checkpoint fails with `part`, and changes nothing.
  void expect_refused(const std::string& part, const std::string& label) {
    const std::string message = error_of([&] { engine_.load(newest()); });
    EXPECT_NE(message.find(part), std::string::npos)
        << label << ": " << message;
  }

  void expect_unchanged() {
    expect_equal(values_of(engine_, *net_), now_, "after refused loads");
    EXPECT_EQ(engine_.load(checkpoint_path(folder(), 1)), 1);
  }

 private:
  TemporaryFolder folder_;
  Restless net_;
  Engine engine_;
  std::map<std::string, at::Tensor> now_;
};

/// Writes a byte of a file; closes it, so that it is read anew.
void put_byte(const fs::path& file, size_t at, char byte) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
}

/// Every `step`th byte of a file in turn with one of its bits turned over.
void flip_bytes(Fixture& fixture, const char* name, size_t step) {
  const fs::path file = fixture.newest() / name;
  const std::string content = runtime::read_text_file(file);
  for (size_t at = 0; at < content.size(); at += step) {
    const char flipped =
        static_cast<char>(content[at] ^ (1 << ((at / step) % 8)));
    put_byte(file, at, flipped);
    fixture.expect_refused(name, "byte " + std::to_string(at));
    put_byte(file, at, content[at]);
  }
  EXPECT_EQ(error_of([&] { fixture.engine().load(fixture.newest()); }), "");
}

/// Limits the size of files that this process writes, as a full disk does:
/// writing further fails.
class FileLimit {
 public:
  explicit FileLimit(uint64_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

} // namespace

TEST(EveryByte, OfTheManifest) {
  run_ranks(1, [&](World&) {
    Fixture fixture;
    flip_bytes(fixture, "manifest.json", 1);
  });
}

TEST(EveryByte, OfARanksFile) {
  run_ranks(1, [&](World&) {
    Fixture fixture;
    flip_bytes(fixture, "rank-0.safetensors", 7);
  });
}

TEST(EveryByte, IsNeeded) {
  run_ranks(1, [&](World&) {
    Fixture fixture;
    for (const char* name : {"manifest.json", "rank-0.safetensors"}) {
      const fs::path file = fixture.newest() / name;
      const std::string content = runtime::read_text_file(file);
      for (size_t size = 0; size < content.size();
           size += 1 + content.size() / 200) {
        std::ofstream(file, std::ios::binary) << content.substr(0, size);
        fixture.expect_refused(name, std::to_string(size) + " bytes");
      }
      fs::remove(file);
      // Without its manifest, it is none.
      fixture.expect_refused(
          std::string(name) == "manifest.json" ? "is not a checkpoint" : name,
          "no file");
      std::ofstream(file, std::ios::binary) << content;
    }
    fixture.expect_unchanged();
  });
}

TEST(EveryByte, MayBeTheLastOneThatTheDiskTakes) {
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background);
    run_ranks(1, [&](World&) {
      Fixture fixture(in_background);
      const fs::path folder = fixture.folder();
      uint64_t largest = 0;
      for (const auto& entry : fs::directory_iterator(fixture.newest())) {
        largest = std::max(largest, fs::file_size(entry.path()));
      }
      uint64_t size = 0;
      int failures = 0;
      for (; size < largest; size += 101) {
        const std::string message = error_of([&] {
          const FileLimit limit(size);
          save(fixture.engine(), folder, in_background);
        });
        failures += message.empty() ? 0 : 1;
        EXPECT_NE(message.find(folder.string()), std::string::npos)
            << size << ": " << message;
        EXPECT_NE(message.find("File too large"), std::string::npos)
            << size << ": " << message;
        ASSERT_EQ(list_checkpoints(folder).size(), 2u) << size;
      }
      EXPECT_GT(failures, 50);
      fixture.expect_unchanged();
      EXPECT_EQ(fixture.engine().load(folder), 2);
      // What has failed does not keep the next one from being saved.
      save(fixture.engine(), folder / "later", in_background);
      EXPECT_EQ(fixture.engine().load(folder / "later"), 2);
    });
  }
}

TEST(EveryByte, OfAFolderThatCannotBeWritten) {
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background);
    run_ranks(1, [&](World&) {
      Fixture fixture(in_background);
      const fs::path folder = fixture.folder();
      // Permissions do not keep root from anything.
      const bool is_root = ::geteuid() == 0;
      if (is_root) {
        ASSERT_EQ(::chown(folder.c_str(), kNobody, kNobody), 0);
      }
      ASSERT_EQ(::chmod(folder.c_str(), 0555), 0);
      if (is_root) {
        ASSERT_EQ(::seteuid(kNobody), 0);
      }
      const std::string message =
          error_of([&] { save(fixture.engine(), folder, in_background); });
      if (is_root) {
        ASSERT_EQ(::seteuid(0), 0);
      }
      ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
      EXPECT_NE(message.find(folder.string()), std::string::npos) << message;
      EXPECT_NE(message.find("Permission denied"), std::string::npos)
          << message;
      fixture.expect_unchanged();
      EXPECT_EQ(fixture.engine().load(folder), 2);
    });
  }
}

} // namespace tessera::engine::every_byte_test
