# The public names, one line each: type checkers read this file, `import artesian` takes its table from it, and the
# documentation its headings. A title is a comment that begins with two hashes.

## Simulate
from artesian.config.experiments import simulate as simulate
from artesian.config.experiments import load as load
from artesian.config.experiments import presets as presets
from artesian.simulator.saved_runs import open_run as open_run
from artesian.simulator.experiment import Experiment as Experiment
from artesian.simulator.result import Run as Run
from artesian.core import Plan as Plan
from artesian.simulator.fleet import Fleet as Fleet
from artesian.simulator.pretraining import Start as Start
from artesian.simulator.shifts import Shift as Shift
from artesian.simulator.shifts import Shifted as Shifted
from artesian.simulator.drifting import Drifts as Drifts
from artesian.simulator.drifting import DriftingWorld as DriftingWorld
from artesian.simulator.watching import Watches as Watches
from artesian.simulator.simulation import Progress as Progress
from artesian.leagues.running import league as league
from artesian.leagues.standings import Standings as Standings

## Connect a client
from artesian.client.connect import connect as connect
from artesian.client.connect import connect_async as connect_async
from artesian.client.connect import Client as Client
from artesian.client.session import Session as Session
from artesian.client.in_use import Refreshed as Refreshed
from artesian.engine.drawing import Moved as Moved
from artesian.client.asynchronous import AsyncSession as AsyncSession

## Know when to refresh
from artesian.client.watch import Watch as Watch
from artesian.client.watch import RefreshRecord as RefreshRecord
from artesian.client.asynchronous import AsyncWatch as AsyncWatch
from artesian.drift.detectors import detector as detector
from artesian.drift.detectors import DETECTORS as DETECTORS
from artesian.drift.detector import Detector as Detector
from artesian.drift.detector import Batch as Batch
from artesian.drift.detector import Drift as Drift
from artesian.drift.policy_text import policy as policy
from artesian.drift.policy import Policy as Policy
from artesian.drift.policy import Situation as Situation
from artesian.drift.policy import any_of as any_of
from artesian.drift.policy import all_of as all_of
from artesian.drift.rules import OnDrift as OnDrift
from artesian.drift.rules import Again as Again
from artesian.drift.rules import OnAge as OnAge
from artesian.drift.rules import OnSamples as OnSamples
from artesian.drift.rules import Every as Every
from artesian.drift.rules import OnRequest as OnRequest
from artesian.drift.rules import OnCallback as OnCallback
from artesian.drift.rules import Always as Always
from artesian.drift.rules import Never as Never
from artesian.drift.rules import Budget as Budget
from artesian.drift.rules import AtLeastApart as AtLeastApart
from artesian.drift.rules import Confirmed as Confirmed
from artesian.drift.rules import Allowed as Allowed
from artesian.drift.watch import Watching as Watching
from artesian.drift.watch import Decision as Decision

## Serve a federation
from artesian.server.federation import Federation as Federation
from artesian.engine.defence import Defence as Defence
from artesian.server.settings import Settings as Settings
from artesian.server.models_file import start_from as start_from

## Models and learners
from artesian.learners.torch import TorchModel as TorchModel
from artesian.learners.torch import TorchLearner as TorchLearner
from artesian.learners.torch import one_thread as one_thread
from artesian.learners.arrays import SoftmaxRegression as SoftmaxRegression
from artesian.learners.arrays import Perceptron as Perceptron
from artesian.learners.arrays import LinearRegression as LinearRegression
from artesian.core import Model as Model
from artesian.core import Learner as Learner
from artesian.core import Labelled as Labelled
from artesian.core import Divisible as Divisible
from artesian.core import Predicting as Predicting
from artesian.core import Readable as Readable

## Worlds
from artesian.simulator.worlds import World as World
from artesian.simulator.worlds import Visit as Visit
from artesian.simulator.worlds import Concept as Concept
from artesian.data.datasets import Samples as Samples
from artesian.data.datasets import Images as Images
from artesian.simulator.worlds import Rotated as Rotated
from artesian.simulator.worlds import Relabelled as Relabelled
from artesian.simulator.worlds import LabelGroups as LabelGroups
from artesian.simulator.worlds import FewClasses as FewClasses
from artesian.simulator.worlds import Natural as Natural
from artesian.simulator.worlds import Synthetic as Synthetic
from artesian.simulator.worlds import Linear as Linear
from artesian.simulator.worlds import DigitWorld as DigitWorld

## Write an algorithm
from artesian.core import Algorithm as Algorithm
from artesian.core import Task as Task
from artesian.core import Upload as Upload
from artesian.core import Matrix as Matrix
from artesian.core import Measured as Measured
from artesian.core import Receipt as Receipt
from artesian.core import Step as Step
from artesian.core import State as State
from artesian.core import Cluster as Cluster
from artesian.core import Member as Member
from artesian.core import MeasureContext as MeasureContext
from artesian.core import Pace as Pace
from artesian.core import Desk as Desk
from artesian.engine.pace import Stream as Stream
from artesian.engine.pace import Rounds as Rounds
from artesian.core import Mixture as Mixture
from artesian.core import Evidence as Evidence
from artesian.core import Buffers as Buffers
from artesian.core import ClientId as ClientId
from artesian.core import ClusterId as ClusterId
from artesian.core import generator as generator
from artesian.algorithms import staleness as staleness
from artesian.testing import check_algorithm as check_algorithm
from artesian.testing import InProcess as InProcess

## Vectors
from artesian.params import Layout as Layout
from artesian.params import Params as Params
from artesian.params import average as average
from artesian.params import combine as combine
from artesian.params import toward as toward
from artesian.params import minus as minus
from artesian.params import distance as distance
from artesian.params import norm as norm
from artesian.params import cosine as cosine
from artesian.params import dot as dot
from artesian.params import keep_buffers as keep_buffers
from artesian.params import seal as seal

## The client half
from artesian.recipes import recipe as recipe
from artesian.recipes import register as register
from artesian.core import Recipe as Recipe
from artesian.core import Fit as Fit
from artesian.core import Notebook as Notebook
from artesian.core import Ensemble as Ensemble
from artesian.core import Pull as Pull
from artesian.storage.codec import decode as decode
from artesian.storage.codec import encode as encode
from artesian.storage.acknowledgement import Acknowledgement as Acknowledgement
from artesian.storage.acknowledgement import verify_acknowledgement as verify_acknowledgement

## The engine
from artesian.engine.coordinator import Coordinator as Coordinator
from artesian.core import Reply as Reply

## Errors
from artesian.errors import ArtesianError as ArtesianError
from artesian.errors import UserError as UserError
from artesian.errors import MachineError as MachineError
from artesian.errors import Refused as Refused

## Algorithms
from artesian.algorithms import ALGORITHMS as ALGORITHMS
from artesian.algorithms import *

__version__: str
__all__: list[str]
