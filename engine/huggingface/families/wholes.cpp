// Models of several parts whose text part is one of our families.
#include "engine/huggingface/family.h"

namespace sherd::huggingface {
namespace {

constexpr std::string_view kPictures[] = {"vision_tower.", "multi_modal_projector."};
constexpr std::string_view kLlama4[] = {"vision_model.", "multi_modal_projector."};
constexpr Whole kWholes[] = {
    {"gemma3", kPictures},    // Gemma 3 4B and larger
    {"mistral3", kPictures},  // Mistral Small 3.1 and later, Ministral 3
    {"llama4", kLlama4},      // Scout, Maverick
};

}  // namespace

std::span<const Whole> models_of_parts() {
  return kWholes;
}

}  // namespace sherd::huggingface
