#include "sherd/trainer.h"

#include "engine/library/errors.h"
#include "engine/library/trainer_parts.h"

namespace sherd::v0 {

using library::for_user;

Trainer::Trainer(const Recipe& recipe, const TrainerOptions& options)
    : parts_(for_user([&] { return std::make_unique<Parts>(recipe, options); })) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&& other) noexcept = default;
Trainer& Trainer::operator=(Trainer&& other) noexcept = default;

int Trainer::num_ranks() const {
  return parts_->num_ranks();
}
std::int64_t Trainer::steps_done() const {
  return parts_->steps_done();
}
std::int64_t Trainer::max_steps() const {
  return parts_->max_steps();
}
bool Trainer::is_done() const {
  return parts_->is_done();
}
bool Trainer::evaluation_is_due() const {
  return parts_->evaluation_is_due();
}
std::string Trainer::newest_checkpoint() const {
  return parts_->newest_checkpoint();
}

StepMetrics Trainer::step() {
  return for_user([&] { return parts_->step(); });
}
Evaluation Trainer::evaluate() {
  return for_user([&] { return parts_->evaluate({}); });
}
Evaluation Trainer::evaluate(std::int64_t num_batches) {
  return for_user([&] { return parts_->evaluate(num_batches); });
}
void Trainer::save_if_due() {
  for_user([&] { parts_->save_if_due(); });
}
std::string Trainer::save() {
  return for_user([&] { return parts_->save(); });
}
void Trainer::finish() {
  for_user([&] { parts_->finish(); });
}
void Trainer::train(const TrainCallbacks& callbacks) {
  for_user([&] { parts_->train(callbacks); });
}
std::string Trainer::sample(const std::string& prompt, const SampleOptions& options) {
  return for_user([&] { return parts_->sample(prompt, options); });
}

}  // namespace sherd::v0
