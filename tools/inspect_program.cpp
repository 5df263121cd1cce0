// SPDX-License-Identifier: Apache-2.0
// `tessera inspect PATH`: lists what a checkpoint, the folder of a run or a
// file of weights contains.

#include "program_main.h"

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/optim/state_names.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/io/torch_file.h"
#include "tessera/sharding/weights/weight_files.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct InspectArguments {
  std::string path;
  bool json = false;
  bool verify = false;
};

std::string shape_text(const ordered_json& shape) {
  std::string text;
  for (const auto& size : shape) {
    text += (text.empty() ? "" : " x ") + std::to_string(size.get<int64_t>());
  }
  return text.empty() ? "scalar" : text;
}

/// Lists a checkpoint of Tessera.
class CheckpointListing {
 public:
  CheckpointListing(const fs::path& path, bool verify)
      : saved_(path), verify_(verify) {}

  ordered_json list() {
    const engine::CheckpointManifest& manifest = saved_.manifest();
    for (int r = 0; r < saved_.world_size(); ++r) {
      add_rank(r);
    }
    ordered_json parameters = ordered_json::array();
    int64_t numel = 0;
    for (const auto& [name, parameter] : manifest.parameters) {
      const int64_t parameter_numel = numel_of(parameter.sizes);
      numel += parameter_numel;
      ordered_json states = ordered_json::object();
      if (parameter_numel > 0 &&
          !states_[name].contains(engine::kMasterState)) {
        problems_.push_back(formatted("'{}' has none of its elements", name));
      }
      for (const auto& [state, found] : states_[name]) {
        states[state] = {{"dtype", found.dtype}, {"bytes", found.bytes}};
        if (found.is_divided && found.numel != parameter_numel) {
          problems_.push_back(formatted(
              "'{}' of '{}' has {} of {} elements",
              state,
              name,
              found.numel,
              parameter_numel));
        }
      }
      parameters.push_back(
          {{"name", name},
           {"shape", parameter.sizes},
           {"steps", parameter.steps},
           {"states", states}});
    }
    return {
        {"kind", "checkpoint"},
        {"path", saved_.path().string()},
        {"step", manifest.step},
        {"ranks", manifest.ranks.size()},
        {"tensor_ranks", manifest.tensor_ranks},
        {"pipeline_stages", manifest.stages},
        {"parameters_numel", numel},
        {"bytes", bytes_},
        {"files", files_},
        {"tensors", parameters},
        {"verified", verify_},
        {"problems", problems_}};
  }

 private:
  struct State {
    std::string dtype;
    int64_t bytes = 0;
    int64_t numel = 0;
    bool is_divided = false; ///< it has one value per element
  };

  static int64_t numel_of(const std::vector<int64_t>& sizes) {
    int64_t numel = 1;
    for (const int64_t size : sizes) {
      numel *= size;
    }
    return numel;
  }

  void add_rank(int r) {
    const engine::SavedRank& rank =
        saved_.manifest().ranks[static_cast<size_t>(r)];
    files_.push_back(
        {{"file", rank.file},
         {"bytes", rank.bytes},
         {"tensors", rank.tensors.size()}});
    bytes_ += static_cast<int64_t>(rank.bytes);
    if (const auto problem = saved_.problem_of(r)) {
      problems_.push_back(rank.file + " " + *problem);
      return;
    }
    const runtime::SafetensorsFile& opened = saved_.file(r);
    for (const engine::SavedTensor& tensor : rank.tensors) {
      if (!opened.contains(tensor.name)) {
        problems_.push_back(formatted("{} lacks '{}'", rank.file, tensor.name));
        continue;
      }
      const runtime::SafetensorsEntry& entry = opened.at(tensor.name);
      if (verify_ && !engine::CheckpointFiles::is_undamaged(entry, tensor)) {
        problems_.push_back(formatted(
            "{}: '{}' does not have the checksum in the manifest",
            rank.file,
            tensor.name));
      }
      if (!tensor.parameter.empty()) {
        State& state = states_[tensor.parameter][tensor.state];
        state.dtype = name_of(entry.dtype);
        state.bytes += static_cast<int64_t>(entry.data.size());
        state.is_divided = state.is_divided || tensor.part.has_value();
        state.numel += tensor.part ? tensor.part->numel : 0;
      }
    }
  }

  engine::CheckpointFiles saved_;
  bool verify_;
  int64_t bytes_ = 0;
  ordered_json files_ = ordered_json::array();
  std::map<std::string, std::map<std::string, State>> states_;
  std::vector<std::string> problems_;
};

/// Checksums, which only files of torch.save have.
std::vector<std::string> problems_of_file(const fs::path& path) {
  const std::string extension = path.extension();
  TESSERA_CHECK(
      fs::is_regular_file(path) &&
          (extension == ".bin" || extension == ".pt" || extension == ".pth" ||
           extension == ".ckpt"),
      "--verify: {} has no checksums; only checkpoints of Tessera and files of torch.save have them",
      path);
  const auto file = runtime::TorchFile::open(path);
  TESSERA_CHECK(
      file.has_checksums(),
      "--verify: {} has no checksums: it is of a version of PyTorch before 1.6",
      path);
  std::vector<std::string> problems;
  for (const std::string& entry : file.damaged_entries()) {
    problems.push_back("'" + entry + "' does not have its checksum");
  }
  return problems;
}

ordered_json list_weights(const fs::path& path, bool verify) {
  const auto files = sharding::WeightFiles::open(path);
  ordered_json tensors = ordered_json::array();
  int64_t all = 0;
  for (const auto& [name, entry] : files.entries()) {
    auto bytes = static_cast<int64_t>(size_of(entry.dtype));
    for (const int64_t size : entry.shape) {
      bytes *= size;
    }
    all += bytes;
    tensors.push_back(
        {{"name", name},
         {"dtype", name_of(entry.dtype)},
         {"shape", entry.shape},
         {"bytes", bytes},
         {"pieces", entry.regions.size()}});
  }
  return {
      {"kind", "weights"},
      {"path", path.string()},
      {"bytes", all},
      {"tensors", tensors},
      {"verified", verify},
      {"problems",
       verify ? problems_of_file(path) : std::vector<std::string>()}};
}

void print_text(const ordered_json& listed) {
  const auto bytes = [](const ordered_json& value) {
    const auto size = value.get<int64_t>();
    return size < 1024 ? runtime::count_text(size, "byte") // as of a scale
                       : runtime::size_text(size);
  };
  const auto count = [](const ordered_json& number, const char* noun) {
    return runtime::count_text(number.get<int64_t>(), noun);
  };
  std::cout << listed.at("path").get<std::string>() << "\n";
  const bool is_checkpoint = listed.at("kind") == "checkpoint";
  if (is_checkpoint) {
    std::cout << "checkpoint of step " << listed.at("step") << ", "
              << count(listed.at("ranks"), "rank") << " ("
              << listed.at("tensor_ranks") << " tensor-parallel, "
              << count(listed.at("pipeline_stages"), "pipeline stage") << ")\n"
              << listed.at("parameters_numel") << " parameters, "
              << bytes(listed.at("bytes")) << " in "
              << count(listed.at("files").size(), "file") << "\n";
  }
  for (const auto& tensor : listed.at("tensors")) {
    std::cout << "  " << tensor.at("name").get<std::string>() << "  "
              << shape_text(tensor.at("shape"));
    if (is_checkpoint) {
      for (const auto& [state, found] : tensor.at("states").items()) {
        std::cout << "  " << state << " "
                  << found.at("dtype").get<std::string>() << " "
                  << bytes(found.at("bytes"));
      }
    } else {
      std::cout << "  " << tensor.at("dtype").get<std::string>() << "  "
                << bytes(tensor.at("bytes"));
    }
    std::cout << "\n";
  }
  if (!is_checkpoint) {
    std::cout << count(listed.at("tensors").size(), "tensor") << ", "
              << bytes(listed.at("bytes")) << "\n";
  }
  for (const auto& problem : listed.at("problems")) {
    std::cout << "damaged: " << problem.get<std::string>() << "\n";
  }
  if (listed.at("problems").empty()) {
    std::cout
        << (listed.at("verified").get<bool>()
                ? "complete; all checksums are right\n"
                : "complete; checksums were not compared (--verify)\n");
  }
}

} // namespace

int run_inspect(int argc, char** argv) {
  CLI::App app(
      "Lists what a checkpoint, the folder of a run or a file of weights contains",
      "tessera inspect");
  InspectArguments arguments;
  app.add_option(
         "path",
         arguments.path,
         "Checkpoint of Tessera, the folder of a run or of its checkpoints (its newest one); or weights: safetensors, a file of torch.save, a Hugging Face folder, a checkpoint of FSDP or DeepSpeed")
      ->required();
  app.add_flag("--json", arguments.json, "Print JSON");
  app.add_flag(
      "--verify",
      arguments.verify,
      "Compare checksums, which reads all data; of checkpoints of Tessera and files of torch.save");
  app.footer("Exits with 1 if data is missing or damaged.");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  check_one_process("inspect");
  TESSERA_CHECK(
      fs::exists(arguments.path),
      "{} does not exist; give a file or a folder",
      arguments.path);
  const auto checkpoints = engine::checkpoints_in(arguments.path);
  const ordered_json listed =
      checkpoints.empty()
          ? list_weights(arguments.path, arguments.verify)
          : CheckpointListing(checkpoints.back(), arguments.verify).list();
  if (arguments.json) {
    std::cout << listed.dump(2) << "\n";
  } else {
    print_text(listed);
  }
  return listed.at("problems").empty() ? 0 : 1;
}

} // namespace tessera::tools
