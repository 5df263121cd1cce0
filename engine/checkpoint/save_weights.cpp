// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/save_weights.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/page_key.h"
#include "tessera/sharding/tensor_io.h"

#include <c10/core/GradMode.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

runtime::SafetensorsWriter open_file(
    const fs::path& path,
    std::vector<runtime::SafetensorsSpec> specs) {
  const fs::path file = weights_file(path);
  std::error_code code;
  if (file.has_parent_path()) {
    fs::create_directories(file.parent_path(), code);
  }
  TESSERA_CHECK(
      !code,
      "save_weights: cannot create the folder {}: {}. Choose another path.",
      file.parent_path(),
      code.message());
  // transformers rejects files without "pt".
  return {file, std::move(specs), {{"format", "pt"}}};
}

void write(
    runtime::SafetensorsWriter& writer,
    const std::string& name,
    const at::Tensor& tensor) {
  const at::Tensor rows = tensor.cpu().contiguous();
  if (rows.numel() > 0) {
    writer.write(name, sharding::raw_bytes(rows));
  }
}

} // namespace

fs::path weights_file(const fs::path& path) {
  return path.extension() == ".safetensors" ? path : path / "model.safetensors";
}

void save_weights(const torch::nn::Module& module, const fs::path& path) {
  const c10::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    TESSERA_CHECK(
        !sharding::has_page_key(item.value()),
        "save_weights: '{}' is sharded; call Engine::save_weights() on every rank.",
        item.key());
  }
  const auto tensors = unpaged_tensors_of(module);
  std::vector<runtime::SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back(
        {name,
         sharding::saved_dtype_of(tensor.scalar_type()),
         tensor.sizes().vec()});
  }
  runtime::SafetensorsWriter writer = open_file(path, std::move(specs));
  for (const auto& [name, tensor] : tensors) {
    write(writer, name, tensor);
  }
  writer.commit();
}

void save_weights(WholeModel& model, const fs::path& path) {
  std::optional<runtime::SafetensorsWriter> writer; // on rank 0
  JobRanks& job = model.job();
  job.on_all_ranks("save_weights: creating the file", [&] {
    if (job.rank() == 0) {
      std::vector<runtime::SafetensorsSpec> specs;
      for (const WholeTensor& tensor : model.tensors()) {
        specs.push_back(
            {tensor.name(),
             sharding::saved_dtype_of(tensor.spec.dtype),
             tensor.spec.sizes});
      }
      writer.emplace(open_file(path, std::move(specs)));
    }
  });
  model.for_each([&](const WholeTensor& tensor, const at::Tensor& value) {
    write(*writer, tensor.name(), value);
  });
  job.on_all_ranks("save_weights: writing the file", [&] {
    if (writer) {
      writer->commit();
    }
  });
}

} // namespace tessera::engine
