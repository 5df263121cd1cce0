// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders that are damaged, or made to do harm: each one is either loaded, and
// computes, or refused with an error that names the file; nothing crashes, and
// no memory is asked for that the checkpoint does not have.

#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "zoo/model_fixture.h"

#include <fstream>
#include <functional>
#include <string>

namespace tessera::zoo {

/// More than these tiny models need for anything, and less than any size that
/// is wrong asks for.
constexpr int64_t kMostBytes = int64_t{32} << 20;

inline void write_text(
    const std::filesystem::path& path,
    const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A copy of a folder, of which some files are replaced.
class Hostile {
 public:
  using Load = std::function<void(const std::filesystem::path& folder)>;

  /// @param load reads the folder and computes with it.
  Hostile(const std::filesystem::path& original, Load load)
      : original_(original), load_(std::move(load)) {
    std::filesystem::copy(original_, folder_.path());
    std::filesystem::remove(folder_.path() / "expected.safetensors");
  }

  /// A fixture's model, loaded and run.
  explicit Hostile(const std::string& fixture)
      : Hostile(ModelFixture(fixture).folder(), load_model) {}

  std::filesystem::path path(const std::string& file) const {
    return folder_.path() / file;
  }
  std::string original(const std::string& file) const {
    return runtime::read_text_file(original_ / file);
  }

  /// Counts what became of the folder; an error must name it and `key`.
  void load(const std::string& label, const std::string& key = "") {
    SCOPED_TRACE(label);
    const int64_t before = runtime::cpu_bytes_live();
    runtime::reset_cpu_bytes_peak();
    try {
      load_(folder_.path());
      ++loaded_;
    } catch (const Error& error) {
      ++refused_;
      const std::string message = error.what();
      EXPECT_NE(message.find(folder_.path().string()), std::string::npos)
          << "the file is not named: " << message;
      EXPECT_NE(message.find(key), std::string::npos)
          << "'" << key << "' is not named: " << message;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an error of ours: " << error.what();
    }
    EXPECT_LT(runtime::cpu_bytes_peak() - before, kMostBytes);
  }

  int loaded() const {
    return loaded_;
  }
  int refused() const {
    return refused_;
  }

 private:
  static void load_model(const std::filesystem::path& folder) {
    const auto model = from_pretrained(folder);
    ModelInput input;
    input.input_ids = torch::zeros({1, 3}, torch::kLong);
    try {
      const torch::NoGradGuard no_grad;
      model->forward(input);
    } catch (const Error&) {
      // This model takes something else, or less, and says so.
    }
  }

  std::filesystem::path original_;
  Load load_;
  TemporaryFolder folder_;
  int loaded_ = 0;
  int refused_ = 0;
};

class HostileFolders : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    runtime::install_cpu_memory_counter();
  }
};

} // namespace tessera::zoo
