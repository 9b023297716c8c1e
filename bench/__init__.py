"""How long would it take to pre-train this model on this machine?

One word, one meaning, everywhere in code, files and output:

manifest     what to measure, as JSON; never where
model        an architecture plus its recipe
family       the code that builds one kind of architecture and counts its work
recipe       how a model is trained: batch, steps, precision, optimizer, objective
paper-code   behind a model's name and "@": its recipe as the paper's published code reads it
method       one change to speed or memory that leaves the mathematics alone
setting      the methods in force together; the empty setting is "naive"
free-lunch   the setting of all methods that cost nothing and that the model can take
micro-batch  samples of one pass on one GPU
pass         forward and backward over one micro-batch
accumulation passes of one GPU between two updates
update       clipping, optimizer, scheduler, zeroing of gradients
step         accumulation passes and one update: what a recipe counts
trial        one setting of one model at one micro-batch, in a process of its own
outcome      how a trial ended: measured, out-of-memory, unsupported, timed-out, crashed
measurement  the raw samples of a trial, never summaries
estimate     what follows from a measurement: days, utilisation, intervals
proof        a piece of real training that an estimate is held against
ceiling      the best rate this machine reached on the bare operation
check        one question about the node's health, with a verdict
verdict      pass, warn, fail or not-run; what was not run is never a pass
finding      one answer of a check: verdict, number, expectation, its source, what to do
reading      what one check measured, or what NVML said: from which findings follow, again and again
profile      what one kind of GPU in one form reaches, each figure with its source and tolerance
soak         full load for long, watched
fleet        the checks of many nodes, held against each other
lemon        a GPU that failed by its own fault in more than one check, wherever it was
journal      the append-only file of a run, a line an event
run          one execution of a manifest on one machine
image        the software of a run, locked: named by the digest of its configuration
variant      one of the images: cuda13, cuda12.8, cpu
switch       an environment variable that torch, or what is below it, obeys
engine       what runs an image: docker, podman, apptainer; or none
node         a machine that is reached by SSH, and what is asked of it there
push         one command that sends a run to nodes, and all that it begins
preflight    what is found out about a node before anything is sent; each thing found is a finding
place        the folder on a node below which everything of ours lies
mirror       the copy here of a run's files there, which grows as they do
bundle       what a run leaves: manifest, results, samples, logs, signed
operator     who asks for a run on a machine that need not be trusted
challenge    his demand: one run, one manifest, one nonce
certificate  his SSH key's word that a run's own key may sign that run's bundle
receipt      his word that a bundle arrived, once, in time
level        how much of that a verifier can be sure of: self, operator
row          one model on one machine, as a bundle has it
comparison   the rows that are ranked, those that stand apart, and what to buy or rent
offer        one way to get a machine: to buy it, or to rent it
claim        a figure of the paper's, with the utilisation that it implies
guess        days on a machine that was not measured; people read ESTIMATE
course       clocks, power and temperature over a run
"""

__version__ = "0.1.0"
