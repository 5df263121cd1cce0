// SPDX-License-Identifier: Apache-2.0
// Weights of whole models out of parts and into them; and what is said of
// checkpoints that do not fit or are damaged.
#include "engine/parallel/mesh_checkpoint.h"
#include "support/expect_error.h"
#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/safetensors.h"

#include <csignal>
#include <fstream>

namespace tessera::engine::mesh_weights_test {

namespace {

using namespace tests;
namespace fs = std::filesystem;

/// The model of another seed, and a copy of its file with one more tensor.
void write_files(const TemporaryFolder& folder) {
  run_ranks(1, [&](World& world) {
    MeshJob job(world, kMeshLayouts[0], mesh_options(), false, /*seed=*/8);
    job.engine().save_weights(folder / "whole.safetensors");
    const auto file =
        runtime::SafetensorsFile::open(folder / "whole.safetensors");
    std::vector<runtime::SafetensorsSpec> specs;
    for (const auto& entry : file.entries()) {
      specs.push_back({entry.name, entry.dtype, entry.shape});
    }
    specs.push_back({"block1.extra", runtime::SafetensorsDtype::kU8, {1}});
    runtime::SafetensorsWriter writer(folder / "more.safetensors", specs);
    for (const auto& entry : file.entries()) {
      writer.write(entry.name, entry.data);
    }
    writer.write("block1.extra", std::vector<std::byte>(1));
    writer.commit();
    specs.clear();
    for (const auto& entry : file.entries()) {
      if (entry.name != "head.weight") {
        specs.push_back({entry.name, entry.dtype, entry.shape});
      }
    }
    runtime::SafetensorsWriter less(folder / "less.safetensors", specs);
    for (const auto& spec : specs) {
      less.write(spec.name, file.at(spec.name).data);
    }
    less.commit();
  });
}

/// Ends the process without a word when it is saved.
class Killer : public Checkpointable {
 public:
  explicit Killer(bool armed) : armed_(armed) {}
  std::string name() const override {
    return "killer";
  }
  bool is_per_rank() const override {
    return true;
  }
  CheckpointState save_state() const override {
    if (armed_) {
      std::raise(SIGKILL);
    }
    return {{{"alive", true}}, {}};
  }
  void load_state(const CheckpointState&) override {}

 private:
  bool armed_;
};

const MeshLayout& four_parts() {
  static const MeshLayout layout{
      "tensor2_pipeline2", {.shard = 1, .tensor = 2, .pipeline = 2}};
  return layout;
}

/// Loading fails on every rank: with `parts` on those that see it, and with
/// word of them on the others. Nothing has changed then.
void expect_refused(
    const fs::path& folder,
    const MeshLayout& layout,
    bool tied,
    std::initializer_list<const char*> parts) {
  run_ranks(layout.world_size(), [&](World& world) {
    MeshJob job(world, layout, mesh_options(), tied, /*seed=*/6);
    const auto values = [&] {
      std::vector<at::Tensor> all;
      job.engine().for_each_parameter(
          [&](const std::string&, const at::Tensor& value) {
            all.push_back(value.clone());
          });
      return all;
    };
    const auto before = values();
    const std::string message = error_of([&] { job.engine().load(folder); });
    if (message.find("other rank") == std::string::npos) {
      for (const char* part : parts) {
        EXPECT_NE(message.find(part), std::string::npos)
            << "expected: " << part << "\nfound: " << message;
      }
    }
    const auto after = values();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].equal(before[i]));
    }
    job.train(0);
  });
}

/// Of a piece of a state that every reader needs, behind this rank's buffers.
void flip_a_byte(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header = 0;
  stream.read(reinterpret_cast<char*>(&header), sizeof(header));
  const auto place = static_cast<std::streamoff>(sizeof(header) + header + 64);
  stream.seekg(place);
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(place);
  stream.put(byte);
}

void save_one(const fs::path& folder, const MeshLayout& layout, bool tied) {
  run_ranks(layout.world_size(), [&](World& world) {
    MeshJob job(world, layout, mesh_options(), tied);
    job.train(0);
    job.engine().save(folder);
  });
}

} // namespace

TEST(MeshWeights, GoIntoPartsAndOutOfThem) {
  const TemporaryFolder folder;
  write_files(folder);
  for (const MeshLayout& layout : kMeshLayouts) {
    SCOPED_TRACE(layout.name);
    run_ranks(layout.world_size(), [&](World& world) {
      MeshJob job(world, layout, mesh_options());
      const auto report =
          job.engine().load_weights(folder / "whole.safetensors");
      EXPECT_TRUE(report.missing.empty());
      EXPECT_TRUE(report.unexpected.empty());
      EXPECT_TRUE(report.left_out.empty());
      const auto file = folder / (std::string(layout.name) + ".safetensors");
      job.engine().save_weights(file);
      if (world.rank() == 0) {
        EXPECT_EQ(
            runtime::read_text_file(file),
            runtime::read_text_file(folder / "whole.safetensors"));
      }
      job.train(0);
    });
  }
}

TEST(MeshWeights, NameWhatNoStageWantsAndWhatOneMisses) {
  const TemporaryFolder folder;
  write_files(folder);
  for (const MeshLayout& layout : {kMeshLayouts[1], kMeshLayouts[3]}) {
    SCOPED_TRACE(layout.name);
    run_ranks(layout.world_size(), [&](World& world) {
      MeshJob job(world, layout, mesh_options());
      expect_error(
          [&] { job.engine().load_weights(folder / "more.safetensors"); },
          {"unexpected: 'block1.extra'"});
      expect_error(
          [&] { job.engine().load_weights(folder / "less.safetensors"); },
          {"missing: 'head.weight'"});
      LoadWeightsOptions lenient;
      lenient.strict = false;
      auto report =
          job.engine().load_weights(folder / "more.safetensors", lenient);
      EXPECT_EQ(report.unexpected, std::vector<std::string>{"block1.extra"});
      EXPECT_TRUE(report.left_out.empty());
      lenient.rename = [](std::string_view name) {
        return std::string(name == "block1.extra" ? "" : name);
      };
      report = job.engine().load_weights(folder / "more.safetensors", lenient);
      EXPECT_EQ(report.left_out, std::vector<std::string>{"block1.extra"});
      EXPECT_TRUE(report.unexpected.empty());
      report = job.engine().load_weights(folder / "less.safetensors", lenient);
      EXPECT_EQ(report.missing, std::vector<std::string>{"head.weight"});
    });
  }
}

TEST(MeshWeights, AreRefusedOnAllRanksWhenTheDiskIs) {
  const TemporaryFolder folder;
  runtime::write_file_atomically(folder / "file", "in the way");
  run_ranks(4, [&](World& world) {
    MeshJob job(world, four_parts(), mesh_options());
    expect_error(
        [&] { job.engine().save_weights(folder / "file/model"); },
        {world.rank() == 0 ? "cannot create the folder"
                           : "failed on 1 other rank"});
    job.engine().save_weights(folder / "after");
  });
  EXPECT_TRUE(fs::exists(folder / "after/model.safetensors"));
}

TEST(MeshCheckpointDamage, IsNamedOnEveryRank) {
  const TemporaryFolder folder;
  save_one(folder / "a", four_parts(), false);
  const auto file = folder / "a/step-000001/rank-3.safetensors";
  flip_a_byte(file);
  for (const MeshLayout& layout : {four_parts(), kMeshLayouts[0]}) {
    expect_refused(
        folder / "a",
        layout,
        false,
        {"rank-3.safetensors", "checksum", "damaged"});
  }
  fs::remove(file);
  for (const MeshLayout& layout : {four_parts(), kMeshLayouts[3]}) {
    expect_refused(
        folder / "a", layout, false, {"rank-3.safetensors", "cannot be read"});
  }
}

TEST(MeshCheckpointDamage, AManifestWithoutSomePiecesIsRefused) {
  const TemporaryFolder folder;
  save_one(folder / "a", four_parts(), false);
  const auto file = folder / "a/step-000001/manifest.json";
  const auto text = runtime::read_text_file(file);
  const auto with = [&](const std::function<void(nlohmann::json&)>& change) {
    auto manifest = nlohmann::json::parse(text);
    manifest["format"] = 2; // without a checksum of its own
    manifest.erase("checksum");
    for (auto& tensor : manifest["ranks"][3]["tensors"]) {
      if (tensor["name"] == "piece/master/head.weight") {
        change(tensor);
      }
    }
    std::ofstream(file) << manifest;
  };
  with([](auto& tensor) { tensor["parameter"] = "norm.weight"; });
  expect_refused(
      folder / "a", kMeshLayouts[0], false, {"norm.weight", "damaged"});
  with([](auto& tensor) { tensor["state"] = "other"; });
  expect_refused(
      folder / "a",
      kMeshLayouts[0],
      false,
      {"elements of 'master' of parameter 'head.weight'", "not in any file"});
  with([](auto& tensor) { tensor["part"]["end"] = 1000; });
  expect_refused(
      folder / "a",
      kMeshLayouts[0],
      false,
      {"head.weight", "outside the parameter"});
  with([](auto& tensor) { tensor["part"]["begin"] = 0; });
  expect_refused(
      folder / "a", kMeshLayouts[0], false, {"head.weight", "overlaps"});
}

TEST(MeshCheckpointDamage, AnotherModelIsNamed) {
  const TemporaryFolder folder;
  save_one(folder / "untied", four_parts(), false);
  save_one(folder / "tied", kMeshLayouts[0], true);
  for (const MeshLayout& layout : {four_parts(), kMeshLayouts[0]}) {
    expect_refused(
        folder / "untied",
        layout,
        true,
        {"has a parameter 'head.weight' that the model does not have"});
    expect_refused(
        folder / "tied",
        layout,
        false,
        {"no parameter 'head.weight'", "as it was saved"});
  }
}

TEST(MeshCheckpointDamage, AKilledSaveLeavesTheOneBefore) {
  const TemporaryFolder folder;
  const auto results = run_ranks_expecting(4, [&](World& world) {
    MeshJob job(world, four_parts(), mesh_options());
    Killer peaceful(false);
    Killer killer(world.rank() == 3);
    job.train(0);
    job.engine().save(folder.path(), {&peaceful});
    job.train(1);
    job.engine().save(folder.path(), {&killer});
  });
  EXPECT_EQ(results[3].exit_code, 128 + SIGKILL);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_NE(results[rank].exit_code, 0) << rank;
  }
  run_ranks(2, [&](World& world) {
    MeshJob job(world, kMeshLayouts[1], mesh_options());
    EXPECT_EQ(job.engine().load(folder.path()), 1);
    job.train(1);
    job.engine().save(folder.path());
    if (world.rank() == 0) {
      EXPECT_EQ(folder.count(), 2); // what the dead run left is gone
    }
  });
}

// As it was written before there were parts.
TEST(MeshCheckpointDamage, ManifestsOfTheFirstFormatAreRead) {
  const TemporaryFolder folder;
  save_one(folder / "a", kMeshLayouts[0], false);
  const auto file = folder / "a/step-000001/manifest.json";
  auto manifest = nlohmann::json::parse(runtime::read_text_file(file));
  manifest["format"] = 1;
  manifest.erase("tensor_ranks");
  manifest.erase("stages");
  manifest.erase("checksum");
  std::ofstream(file) << manifest;
  run_ranks(4, [&](World& world) {
    MeshJob job(world, four_parts(), mesh_options(), false, /*seed=*/6);
    EXPECT_EQ(job.engine().load(folder / "a"), 1);
    job.train(1);
  });
}

} // namespace tessera::engine::mesh_weights_test
