// SPDX-License-Identifier: Apache-2.0
// Checkpoints of FSDP and DeepSpeed against what their own tools consolidate;
// see tests/fixture_makers/engine_checkpoints.py.
#include "tessera/sharding/weights/torch_checkpoint.h"

#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/weights/weight_files.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tessera::sharding::torch_checkpoint_test {

namespace {

namespace fs = std::filesystem;

fs::path engine_fixture(const std::string& name) {
  return fs::path(tests::source_dir()) / "tests/sharding/fixtures/engines" /
         name;
}

void expect_consolidated(const std::string& name, size_t regions) {
  SCOPED_TRACE(name);
  const auto got = WeightFiles::open(engine_fixture(name));
  const auto want = WeightFiles::open(engine_fixture(name + ".safetensors"));
  EXPECT_EQ(got.entries().size(), want.entries().size());
  size_t most = 0;
  for (const auto& [tensor, entry] : want.entries()) {
    SCOPED_TRACE(tensor);
    const WeightEntry* found = got.find(tensor);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->shape, entry.shape);
    most = std::max(most, found->regions.size());
    EXPECT_TRUE(torch::equal(
        loaded_tensor(*found).to(torch::kFloat),
        loaded_tensor(entry).to(torch::kFloat)));
  }
  EXPECT_GE(most, regions) << "no tensor is divided: the fixture shows nothing";
}

/// A copy of a fixture, to be damaged.
class Copy {
 public:
  explicit Copy(const std::string& name) : path_(folder_ / name) {
    fs::copy(engine_fixture(name), path_, fs::copy_options::recursive);
  }
  fs::path operator/(const std::string& file) const {
    return path_ / file;
  }
  void refuse(std::initializer_list<const char*> parts) const {
    expect_error([&] { WeightFiles::open(path_); }, parts);
  }
  void cut(const std::string& file, size_t bytes) const {
    fs::resize_file(path_ / file, bytes);
  }

 private:
  TemporaryFolder folder_;
  fs::path path_;
};

} // namespace

TEST(TorchCheckpoint, OfFsdpHasWholeTensors) {
  expect_consolidated("dcp", 2);
}

TEST(TorchCheckpoint, OfDeepSpeedHasWholeTensors) {
  expect_consolidated("zero1", 2);
  expect_consolidated("zero2", 2);
  expect_consolidated("zero3", 2);
}

TEST(TorchCheckpoint, OfFsdpThatIsIncompleteIsRefused) {
  const Copy lacking("dcp");
  fs::remove(lacking / "__1_0.distcp");
  lacking.refuse({"__1_0.distcp", "No such file"});
  const Copy cut("dcp");
  cut.cut("__1_0.distcp", 1000);
  cut.refuse({"__1_0.distcp", "has 1000 bytes", "fetch it again"});
  const Copy described("dcp");
  described.cut(".metadata", 3000);
  described.refuse({".metadata", "ends too early"});
  const Copy other("dcp");
  std::ofstream(other / ".metadata") << "cos\nsystem\n(S'true'\ntR.";
  other.refuse({".metadata", "'os.system'"});
}

TEST(TorchCheckpoint, OfFsdpCannotNameOtherFolders) {
  const Copy copy("dcp");
  std::string text = runtime::read_text_file(copy / ".metadata");
  const std::string from = "__0_0.distcp";
  for (size_t at = 0; (at = text.find(from)) != std::string::npos;) {
    text.replace(at, from.size(), "../_0.distcp");
  }
  std::ofstream(copy / ".metadata") << text;
  copy.refuse({"'../_0.distcp' is not the name of a file"});
}

TEST(TorchCheckpoint, OfDeepSpeedThatIsIncompleteIsRefused) {
  for (const char* name : {"zero2", "zero3"}) {
    const Copy lacking(name);
    for (const auto& item : fs::directory_iterator(lacking / "global_step1")) {
      const std::string file = item.path().filename();
      if (file.find("pp_rank_1_") != std::string::npos &&
          file.ends_with("optim_states.pt")) {
        fs::remove(item.path());
      }
    }
    lacking.refuse({"of 2 ranks", "'..._optim_states.pt' of 1"});
  }
  const Copy latest("zero1");
  std::ofstream(latest / "latest") << "global_step2";
  latest.refuse({"latest", "'global_step2'", "no folder"});
  std::ofstream(latest / "latest") << "../zero1";
  latest.refuse({"latest", "'../zero1'"});
  const Copy divided("zero1");
  const auto step = divided / "global_step1";
  fs::copy_file(
      step / "mp_rank_00_model_states.pt", step / "mp_rank_01_model_states.pt");
  divided.refuse({"mp_rank_01_model_states.pt", "tensor parallelism"});
}

} // namespace tessera::sharding::torch_checkpoint_test
