"""Run bench on other machines: survey a node, ship the image, start and mirror the run, fetch its bundle.

hosts           the hosts to push to, from arguments or an Ansible inventory
remote          a node's shell, over SSH or on this machine; connection is what carries it:
                openssh by OpenSSH's client, over_fabric by Fabric where there is none
node_survey     the state of a node, read in one round trip; node_findings lists its problems
image_store     images on this machine, layer by layer
ship            brings an image, a Python or bench's code to a node; send_blobs sends the blobs that it lacks;
                pull_image lets it pull an image from a registry
assembly        lets a node assemble its image from packages that it downloads, if that is faster
shared_place    claims what nodes of one home share, and deletes what nobody claims; place_lock: takes turns
run_script      run.sh, which starts a run on its node; also queries and ends it; slurm: runs it as a job
push_record     a file on this machine for every run that was started
mirror          copies a run's files to this machine while they grow, certifies its key, fetches its bundle
host_push       the push to one host: finds its run, follows it, fetches its bundle; missing_bundle says why
                there is none; all_hosts pushes to several at a time
node_preflight  chooses engine and image for a surveyed node, and says what stops a run or what it takes
push_to_node    a push over SSH: ships what the engine needs, and starts the run
training_group  keeps hosts that train as one in step
request         what one push asks for, and the result for each host; screen shows the progress

Entry points: `push_to_node.NodePush`, `push_record.Records`, `mirror`. Imports images, operator, node_check,
and the folders below them.
"""
