// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/save_weights.h"

#include "tessera/engine/checkpoint/tensor_sink.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <optional>
#include <utility>
#include <vector>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

/// One safetensors file with all tensors under their first names.
class WeightsFile : public TensorSink {
 public:
  explicit WeightsFile(fs::path file) : file_(std::move(file)) {}

  void prepare(const std::vector<ModelTensor>& tensors) override {
    for (const ModelTensor& tensor : tensors) {
      specs_.push_back(tensor.spec);
    }
  }

  bool wants(const ModelTensor& /*tensor*/) const override {
    return true;
  }

  void open() override {
    std::error_code code;
    if (file_.has_parent_path()) {
      fs::create_directories(file_.parent_path(), code);
    }
    TESSERA_CHECK(
        !code,
        "save_weights: cannot create the folder {}: {}. Choose another path.",
        file_.parent_path(),
        code.message());
    writer_.emplace(file_, specs_);
  }

  void write(const ModelTensor& tensor, const at::Tensor& value) override {
    writer_->write(tensor.name(), value);
  }

  void commit() override {
    writer_->commit();
  }

 private:
  fs::path file_;
  std::vector<TensorSpec> specs_;
  std::optional<sharding::TensorFileWriter> writer_;
};

} // namespace

fs::path weights_file(const fs::path& path) {
  return path.extension() == ".safetensors" ? path : path / "model.safetensors";
}

void save_weights(const torch::nn::Module& module, const fs::path& path) {
  ModelTensors model(module);
  save_weights(model, path);
}

void save_weights(ModelTensors& model, const fs::path& path) {
  TESSERA_CHECK(
      !path.empty(),
      "save_weights: the path is ''; name a file or a folder, '.' for the current one.");
  WeightsFile file(weights_file(path));
  write_model(model, file, "save_weights");
}

} // namespace tessera::engine
