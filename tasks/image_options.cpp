// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/image_options.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/json_file.h"
#include "tessera/runtime/io/known_keys.h"
#include "tessera/zoo/inputs/example_options.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace tessera::tasks {

namespace {

/// The numbers of Pillow's filters, and so of `resample`.
constexpr int64_t kPillowBilinear = 2;
constexpr int64_t kPillowBicubic = 3;

/// A field of write_preprocessor().
constexpr const char* kCenterCrop = "center_crop";

std::vector<double> numbers_in(
    const runtime::JsonValue& fields,
    const nlohmann::json& file,
    const char* key) {
  const auto found = file.find(key);
  if (found == file.end() || found->is_null()) {
    return {};
  }
  bool are_numbers = found->is_array() && !found->empty();
  for (const auto& one : *found) {
    are_numbers = are_numbers && one.is_number();
  }
  TESSERA_CHECK(
      are_numbers,
      "{}: '{}' is {}; it must be a list of numbers",
      fields.place(),
      key,
      runtime::show_json(*found));
  return found->get<std::vector<double>>();
}

/// "ViT" of ViTImageProcessor, ...ImageProcessorFast and ...FeatureExtractor.
std::string processor_in(const runtime::JsonValue& fields) {
  std::string type =
      fields.get<std::string>("image_processor_type")
          .value_or(fields.get_or<std::string>("feature_extractor_type", ""));
  for (const char* end : {"ImageProcessor", "FeatureExtractor"}) {
    type = type.substr(0, type.find(end));
  }
  return type;
}

/// transformers' processors that read an integer as `size` as both sides of the
/// image; others, such as CLIP's, as the shorter one.
bool has_square_size(const runtime::JsonValue& fields) {
  const std::string type = processor_in(fields);
  return type == "DeiT" || type == "Beit" || type == "ViT" ||
         type == "EfficientNet";
}

/// Whether width and height get their size separately.
bool has_both_sides(const runtime::JsonValue& fields) {
  const auto size = fields.value().find("size");
  if (size == fields.value().end()) {
    return false;
  }
  return size->is_object()
             ? size->contains("height") && !size->at("height").is_null()
             : size->is_number() && has_square_size(fields);
}

/// A number, or an entry of an object of them.
std::optional<double> side_in(
    const runtime::JsonValue& fields,
    const char* key,
    const char* side) {
  const auto found = fields.value().find(key);
  if (found == fields.value().end() || found->is_null()) {
    return std::nullopt;
  }
  return found->is_object() ? fields.section(key).get<double>(side)
                            : fields.get<double>(key);
}

/// ConvNeXT's processor stretches images of at least this size.
constexpr double kStretchedEdge = 384;

/// The fraction of an image's shorter side that the processor of a file keeps;
/// nothing if it does not crop.
std::optional<double> kept_share(const runtime::JsonValue& fields) {
  if (const auto share = fields.get<double>(kCenterCrop)) {
    TESSERA_CHECK(
        *share > 0 && *share <= 1,
        "{}: '{}' is {}; it must be above 0 and at most 1",
        fields.place(),
        kCenterCrop,
        *share);
    return share;
  }
  const bool has_sides = has_both_sides(fields);
  const auto edge =
      side_in(fields, "size", has_sides ? "height" : "shortest_edge");
  if (!edge || !(*edge > 0)) {
    return std::nullopt;
  }
  if (const auto share = fields.get<double>("crop_pct"); share && !has_sides) {
    TESSERA_CHECK(
        *share > 0 && *share <= 1,
        "{}: 'crop_pct' is {}; it must be above 0 and at most 1",
        fields.place(),
        *share);
    return *edge / std::floor(*edge / *share);
  }
  const auto crop = side_in(fields, "crop_size", "height");
  if (!fields.get_or<bool>("do_center_crop", false) || !crop) {
    return std::nullopt;
  }
  TESSERA_CHECK(
      *crop > 0 && *crop <= *edge,
      "{}: 'crop_size' is {}, but must be above 0 and at most {}, {}; set data.center_crop",
      fields.place(),
      *crop,
      has_sides ? "the size" : "shortest_edge",
      *edge);
  if (has_sides) {
    const double width = side_in(fields, "size", "width").value_or(*edge);
    const double kept = side_in(fields, "crop_size", "width").value_or(*crop);
    TESSERA_CHECK(
        kept * *edge == *crop * width,
        "{}: 'crop_size' is {} x {} of a 'size' of {} x {} pixels; other fractions of the height than of the width are not implemented: set data.center_crop",
        fields.place(),
        *crop,
        kept,
        *edge,
        width);
  }
  return *crop / *edge;
}

/// @param share that is kept, if it is known.
ImageFit fit_of(
    const runtime::JsonValue& fields,
    const std::optional<double>& share) {
  const bool crops = fields.get_or<bool>("do_center_crop", false);
  if (has_both_sides(fields)) {
    return crops && share != 1 ? ImageFit::kStretchCrop : ImageFit::kStretch;
  }
  if (fields.get<double>("crop_pct")) {
    const auto edge = side_in(fields, "size", "shortest_edge");
    return edge.value_or(0) >= kStretchedEdge ? ImageFit::kStretch
                                              : ImageFit::kCenterCrop;
  }
  const auto size = fields.value().find("size");
  return !crops && size != fields.value().end() && size->is_number()
             ? ImageFit::kStretch
             : ImageFit::kCenterCrop;
}

/// transformers' image processors.
const runtime::KnownKeys& preprocessor_keys() {
  static const runtime::KnownKeys keys{
      .read =
          {"resample",
           "size",
           "do_center_crop",
           kCenterCrop,
           "crop_size",
           "crop_pct",
           "do_rescale",
           "rescale_factor",
           "do_normalize",
           "image_mean",
           "image_std"},
      .without_effect =
          {"image_processor_type",
           "feature_extractor_type",
           "processor_class",
           "auto_map",
           "data_format",
           "input_data_format",
           "return_tensors",
           "default_to_square",
           "do_convert_rgb",
           "disable_grouping",
           "device"},
      .neutral = {
          {"do_resize", {true}},
          {"do_pad", {false}},
          {"do_reduce_labels", {false}},
          {"do_flip_channel_order", {false}},
          {"rescale_offset", {false}}}};
  return keys;
}

/// What pixels are normalized by, for each channel.
struct PixelMoments {
  std::vector<double> mean;
  std::vector<double> std;
};

/// What transformers' processors take where their file has no `image_mean` or
/// `image_std`.
PixelMoments usual_moments(const runtime::JsonValue& fields, bool has_file) {
  static const PixelMoments imagenet{
      {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
  static const PixelMoments clip{
      {0.48145466, 0.4578275, 0.40821073},
      {0.26862954, 0.26130258, 0.27577711}};
  static const PixelMoments half{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}};
  if (!has_file) {
    return imagenet;
  }
  const std::string type = processor_in(fields);
  const auto is_one_of = [&](std::initializer_list<const char*> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  return is_one_of({"CLIP", "ChineseCLIP", "Bit", "Blip", "OwlViT"}) ? clip
         : is_one_of(
               {"DINOv3ViT",
                "Levit",
                "Perceiver",
                "PoolFormer",
                "Pvt",
                "Segformer"})
             ? imagenet
             : half; // ViT's and most others, also of files that name none
}

double of_view(const std::vector<double>& numbers, int view, double otherwise) {
  if (numbers.empty()) {
    return otherwise;
  }
  return numbers.size() == 1 ? numbers.front() : numbers.at(view);
}

} // namespace

zoo::ViewOptions ImageViewOptions::view(ViewRecipe of, int number) const {
  const bool moco = of == ViewRecipe::kMoco;
  zoo::ViewOptions view;
  view.least_area = least_area;
  view.most_area = most_area;
  view.least_ratio = least_ratio;
  view.most_ratio = most_ratio;
  view.flip = flip;
  const std::vector<double> factors =
      !jitter.empty() ? jitter
      : moco          ? std::vector<double>{0.4, 0.4, 0.2, 0.1}
                      : std::vector<double>{};
  if (!factors.empty()) {
    view.jitter = jitter_probability.value_or(moco ? 0.8 : 1);
    view.brightness = factors.at(0);
    view.contrast = factors.at(1);
    view.saturation = factors.at(2);
    view.hue = factors.at(3);
  }
  view.gray = gray.value_or(moco ? 0.2 : 0);
  view.blur = of_view(blur, number, !moco ? 0 : number == 0 ? 1 : 0.1);
  view.solarize = of_view(solarize, number, moco && number == 1 ? 0.2 : 0);
  return view;
}

void visit_fields(runtime::OptionFields& fields, ImageViewOptions& options) {
  fields.choice(
      "recipe",
      options.recipe,
      {{"none", ViewRecipe::kNone},
       {"crop", ViewRecipe::kCrop},
       {"moco_v3", ViewRecipe::kMoco}},
      "what is random in training images: nothing; a crop that may be mirrored; colors and blur as well. By default `moco_v3` for MoCo, else `crop`; the other keys change it, those of `none` excepted");
  fields.pair(
      "area",
      options.least_area,
      options.most_area,
      {.min = 0, .max = 1, .open_min = true},
      "limits of the crop's fraction of the image");
  fields.pair(
      "ratio",
      options.least_ratio,
      options.most_ratio,
      {.min = 0.01, .max = 100},
      "limits of the crop's width divided by its height");
  fields.field(
      "flip",
      options.flip,
      {.min = 0, .max = 1},
      "probability that left and right are exchanged");
  fields.field(
      "jitter",
      options.jitter,
      {.min = 0, .max = 10},
      "random brightness, contrast, saturation and hue, as torchvision's ColorJitter; `moco_v3`: `[0.4, 0.4, 0.2, 0.1]`");
  fields.field(
      "jitter_probability",
      options.jitter_probability,
      {.min = 0, .max = 1},
      "probability of it, by default 1; `moco_v3`: 0.8");
  fields.field(
      "gray",
      options.gray,
      {.min = 0, .max = 1},
      "probability that colors are removed; `moco_v3`: 0.2");
  fields.field(
      "blur",
      options.blur,
      {.min = 0, .max = 1},
      "probability of a Gaussian blur, one number or one per view; `moco_v3`: `[1, 0.1]`");
  fields.field(
      "solarize",
      options.solarize,
      {.min = 0, .max = 1},
      "probability that bright values are inverted, likewise; `moco_v3`: `[0, 0.2]`");
}

void check(const ImageViewOptions& options, ViewRecipe recipe) {
  const ImageViewOptions usual;
  const char* const set = options.flip != usual.flip      ? "flip"
                          : !options.jitter.empty()       ? "jitter"
                          : options.gray.value_or(0) != 0 ? "gray"
                          : !options.blur.empty()         ? "blur"
                          : !options.solarize.empty()     ? "solarize"
                          : options.least_area != usual.least_area ||
                                  options.most_area != usual.most_area
                              ? "area"
                          : options.least_ratio != usual.least_ratio ||
                                  options.most_ratio != usual.most_ratio
                              ? "ratio"
                              : nullptr;
  TESSERA_CHECK(
      recipe != ViewRecipe::kNone || set == nullptr,
      "data.views.{} is set, but data.views.recipe is none, which leaves images as they are; remove one of them. For flips and colors without a crop, set recipe=crop, area=[1, 1] and ratio=[1, 1]",
      set);
}

void visit_image_fields(runtime::OptionFields& fields, ImageOptions& options) {
  fields.field(
      "heldout_share",
      options.heldout_share,
      {.min = 0, .max = 1, .open_max = true},
      "fraction of each class of `data.train` that is scored and not trained on, in place of `data.heldout`; chosen by the names of the files alone");
  fields.choice(
      "check",
      options.check,
      {{"headers", ImageCheck::kHeaders}, {"pixels", ImageCheck::kPixels}},
      "what is read of all images before the first step: header and end of each file, or all of it, which takes as long as an epoch's decoding");
  fields.field(
      "skip_bad_images",
      options.skip_bad_images,
      "leave out images that fail this check, and log how many; otherwise the first one is an error");
  fields.field(
      "mixup",
      options.mixup,
      {.min = 0, .max = 2},
      "blend each image and its label with another one's, by a weight from Beta(x, x); 0: off. Takes twice the decoding");
  fields.choice(
      "fit",
      options.fit,
      {{"center_crop", ImageFit::kCenterCrop},
       {"stretch", ImageFit::kStretch},
       {"stretch_crop", ImageFit::kStretchCrop}},
      "how scored images get the model's size: the middle, after the shorter side or (`stretch_crop`) both sides are resized, or all of the image; by default as the model's preprocessor_config.json says, else `center_crop`");
  fields.field(
      "center_crop",
      options.center_crop,
      {.min = 0, .max = 1, .open_min = true},
      "the fraction of the shorter side that `center_crop` keeps, of each side that `stretch_crop` does; by default crop_size / size or crop_pct of preprocessor_config.json, else 0.875");
  fields.choice(
      "interpolation",
      options.interpolation,
      {{"bilinear", zoo::Interpolation::kBilinear},
       {"bicubic", zoo::Interpolation::kBicubic}},
      "of resized images; by default preprocessor_config.json's, else `bilinear`");
}

void complete_from_preprocessor(
    const std::filesystem::path& folder,
    ImageOptions& images,
    zoo::PixelOptions& pixels) {
  const std::filesystem::path path = folder / "preprocessor_config.json";
  nlohmann::json file = nlohmann::json::object();
  if (!folder.empty() && std::filesystem::exists(path)) {
    file = runtime::parse_json(runtime::read_text_file(path), path.string());
  }
  const auto fields = runtime::json_object(file, path.string());
  const bool has_file = !file.empty();
  if (!images.interpolation) {
    const auto number = fields.get_or<int64_t>("resample", kPillowBilinear);
    TESSERA_CHECK(
        number == kPillowBilinear || number == kPillowBicubic,
        "{}: 'resample' is {}; images are resized with 2 (bilinear) or 3 (bicubic): set data.interpolation to choose one",
        fields.place(),
        number);
    images.interpolation = number == kPillowBicubic
                               ? zoo::Interpolation::kBicubic
                               : zoo::Interpolation::kBilinear;
  }
  const auto share =
      images.center_crop ? images.center_crop : kept_share(fields);
  if (!images.fit) {
    images.fit = fit_of(fields, share);
  }
  if (!images.center_crop) {
    images.center_crop = share.value_or(kUsualCenterCrop);
  }
  runtime::log_ignored_keys(fields, preprocessor_keys());
  if (!pixels.scale && has_file) {
    pixels.scale = fields.get_or<bool>("do_rescale", true)
                       ? fields.get_or<double>("rescale_factor", 1.0 / 255)
                       : 1.0;
  }
  if (fields.get_or<bool>("do_normalize", true)) {
    const auto complete = [&](std::vector<double>& numbers,
                              const char* key,
                              std::vector<double> otherwise) {
      if (numbers.empty()) {
        numbers = numbers_in(fields, file, key);
      }
      if (numbers.empty()) {
        numbers = std::move(otherwise);
      }
    };
    const PixelMoments usual = usual_moments(fields, has_file);
    complete(pixels.mean, "image_mean", usual.mean);
    complete(pixels.std, "image_std", usual.std);
  }
}

void write_preprocessor(
    const std::filesystem::path& folder,
    const ImageOptions& images,
    const zoo::PixelOptions& pixels,
    const zoo::ImageSize& size) {
  const std::filesystem::path path = folder / "preprocessor_config.json";
  auto file =
      std::filesystem::exists(path)
          ? nlohmann::ordered_json::parse(runtime::read_text_file(path))
          : nlohmann::ordered_json{
                {"image_processor_type",
                 images.fit == ImageFit::kStretchCrop ? "DeiTImageProcessor"
                                                      : "ViTImageProcessor"}};
  for (const char* key : {"crop_pct", "crop_size", kCenterCrop}) {
    file.erase(key);
  }
  const nlohmann::ordered_json sides{
      {"height", size.height}, {"width", size.width}};
  file["do_resize"] = true;
  file["resample"] = images.interpolation == zoo::Interpolation::kBicubic
                         ? kPillowBicubic
                         : kPillowBilinear;
  const bool crops = images.fit != ImageFit::kStretch;
  file["do_center_crop"] = crops;
  if (crops) {
    const double share = images.center_crop.value_or(kUsualCenterCrop);
    const auto resized = [&](int64_t side) {
      return std::llround(static_cast<double>(side) / share);
    };
    if (images.fit == ImageFit::kStretchCrop) {
      file["size"] = {
          {"height", resized(size.height)}, {"width", resized(size.width)}};
    } else {
      file["size"] = {
          {"shortest_edge", resized(std::min(size.height, size.width))}};
    }
    file["crop_size"] = sides;
    file[kCenterCrop] = share;
  } else {
    file["size"] = sides;
  }
  const double scale = pixels.scale.value_or(1.0 / 255);
  file["do_rescale"] = scale != 1;
  file["rescale_factor"] = scale;
  file["do_normalize"] = !pixels.mean.empty() || !pixels.std.empty();
  const auto channels = std::max(pixels.mean.size(), pixels.std.size());
  file["image_mean"] =
      pixels.mean.empty() ? std::vector<double>(channels, 0) : pixels.mean;
  file["image_std"] =
      pixels.std.empty() ? std::vector<double>(channels, 1) : pixels.std;
  runtime::write_file_atomically(path, file.dump(2) + "\n");
}

} // namespace tessera::tasks
